"""The message catalog has an entry for each record of the bus, and says of it what a reader needs. tests/system/ has journald read it."""

from __future__ import annotations

import re

import pytest

from sbusd.broker.log_messages import MESSAGES
from sbusd.systemd.log_message import LogMessage
from tests.support.catalog import CATALOG, Entry, entries
from tools.stage import ROOT

OF_EVERY_RECORD = {"SBUS_PEER_UID", "SBUS_PEER_PID", "SBUS_CONNECTION", "SBUS_KEY"}
"""Fields that are there where they are known, sbusd(8)."""


def test_each_record_has_one_entry_and_no_other_is_there() -> None:
    found = [entry.id for entry in entries()]
    wanted = {message.id: message.name for message in MESSAGES}
    assert len(found) == len(set(found))
    missing = [f"{wanted[each]} {each}: write an entry for it in {CATALOG.name}" for each in wanted.keys() - set(found)]
    assert missing == []
    assert set(found) - wanted.keys() == set()


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.id[:8])
def test_an_entry_says_what_happened_and_where_to_read_on(entry: Entry) -> None:
    assert set(entry.headers) == {"Subject", "Defined-By", "Documentation"}
    assert entry.headers["Defined-By"] == "sbusd"
    assert 10 < len(entry.headers["Subject"]) < 100
    assert len(entry.body) > 40
    assert all(len(line) <= 80 for line in entry.body.splitlines())
    for page in entry.headers["Documentation"].split():
        found = re.fullmatch(r"man:([\w.-]+)\((\d)\)", page)
        assert found, page
        name, section = found.groups()
        assert (ROOT / "man" / f"{name}.{section}").exists() or name in {"systemd.exec", "systemd.service", "unix", "journald.conf"}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.name)
def test_an_entry_names_fields_that_the_record_has_and_all_its_facts(message: LogMessage) -> None:
    facts = {f"SBUS_{name.upper()}" for name in re.findall(r"\{(\w+)\}", message.words)}
    (entry,) = [entry for entry in entries() if entry.id == message.id]
    named = set(re.findall(r"@(\w+)@", entry.body))
    assert facts <= named
    extra = named - facts - OF_EVERY_RECORD
    assert extra <= EXTRA.get(message.name, set())


EXTRA = {"quota-refused": {"SBUS_QUOTA"}}
"""Facts of a record that its words leave out."""
