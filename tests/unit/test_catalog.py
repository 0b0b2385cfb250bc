"""Each log message is in the manual, and has an entry in the catalog of its program, with all facts. tests/system/ has journald read it."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from sbus_archive.recorder.log_messages import MESSAGES as RECORDER
from sbus_archive.shipping.log_messages import MESSAGES as SHIPPING
from sbus_programs.systemd.log_records import LogMessage
from sbus_services.blob.log_messages import MESSAGES as BLOB
from sbus_services.link.log_messages import MESSAGES as LINK
from sbus_services.metrics.log_messages import MESSAGES as METRICS
from sbus_services.relay.log_messages import MESSAGES as RELAY
from sbus_services.store.log_messages import MESSAGES as STORE
from sbus_services.trigger.log_messages import MESSAGES as TRIGGER
from sbus_services.web.log_messages import MESSAGES as WEB
from sbusd.broker.log_messages import MESSAGES as BUS
from tests.support.catalog import CATALOG, Entry, entries
from tests.support.manual import items, section
from tools.stage import ROOT

PROGRAMS = {
    "sbusd": BUS,
    "sbus-blob": BLOB,
    "sbus-link": LINK,
    "sbus-recorder": RECORDER,
    "sbus-relay": RELAY,
    "sbus-ship": SHIPPING,
    "sbus-store": STORE,
    "sbus-metrics": METRICS,
    "sbus-trigger": TRIGGER,
    "sbus-web": WEB,
}

ENTRIES = {program: entries(CATALOG.with_name(f"{program}.catalog")) for program in PROGRAMS}

ALL = list(chain.from_iterable(ENTRIES.values()))

OF_EVERY_RECORD = {"SBUS_PEER_UID", "SBUS_PEER_PID", "SBUS_CONNECTION", "SBUS_KEY"}
"""Fields that records of the bus have if they are known, sbusd(8)."""

EXTRA = {"quota-refused": {"SBUS_QUOTA"}}
"""Facts of a record that its template leaves out."""

OTHER_PAGES = {"systemd.exec", "systemd.service", "unix", "journald.conf"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_message_has_one_entry_and_no_other_is_there(program: str) -> None:
    found = [entry.id for entry in ENTRIES[program]]
    wanted = {message.id: message.name for message in PROGRAMS[program]}
    assert len(found) == len(set(found))
    missing = [f"{wanted[each]} {each}: write an entry for it in {program}.catalog" for each in wanted.keys() - set(found)]
    assert missing == []
    assert set(found) - wanted.keys() == set()


@pytest.mark.parametrize("program", sorted(PROGRAMS.keys() - {"sbusd", "sbus-store"}))
def test_the_manual_lists_each_message(program: str) -> None:
    assert [name for item in items(section(f"{program}.8", "LOG MESSAGES")) for name in item.names] == [
        each.name for each in PROGRAMS[program]
    ]


@pytest.mark.parametrize("attribute", ["id", "name"])
def test_ids_are_unique_in_all_programs_and_names_in_each(attribute: str) -> None:
    for messages in [*PROGRAMS.values(), tuple(chain(*PROGRAMS.values()))] if attribute == "id" else PROGRAMS.values():
        values = [getattr(message, attribute) for message in messages]
        assert len(values) == len(set(values)) >= 8


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.id[:8])
def test_an_entry_describes_the_event_and_refers_to_the_manual(entry: Entry) -> None:
    assert set(entry.headers) == {"Subject", "Defined-By", "Documentation"}
    assert entry.headers["Defined-By"] == "sbusd"
    assert 10 < len(entry.headers["Subject"]) < 100
    assert len(entry.body) > 40
    assert all(len(line) <= 80 for line in entry.body.splitlines())
    for page in entry.headers["Documentation"].split():
        found = re.fullmatch(r"man:([\w.-]+)\((\d)\)", page)
        assert found, page
        name, section = found.groups()
        assert (ROOT / "man" / f"{name}.{section}").exists() or name in OTHER_PAGES


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_entry_names_the_page_of_its_program(program: str) -> None:
    for entry in ENTRIES[program]:
        assert f"man:{program}(8)" in entry.headers["Documentation"] or program == "sbusd"


@pytest.mark.parametrize(
    ("program", "message"),
    [(program, message) for program, messages in PROGRAMS.items() for message in messages],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_entry_names_fields_that_the_record_has_and_all_its_facts(program: str, message: LogMessage) -> None:
    facts = {f"SBUS_{name.upper()}" for name in re.findall(r"\{(\w+)\}", message.template)}
    (entry,) = [entry for entry in ENTRIES[program] if entry.id == message.id]
    named = set(re.findall(r"@(\w+)@", entry.body))
    assert facts <= named
    extra = named - facts - (OF_EVERY_RECORD if program == "sbusd" else set())
    assert extra <= (EXTRA.get(message.name, set()) if program == "sbusd" else set())
