"""The message catalog has an entry for each thing that the relay tells, with all its facts."""

from __future__ import annotations

import re
import string

import pytest

from sbusd.relay.log_messages import EVENTS
from sbusd.systemd.journal import Event
from tests.support.catalog import CATALOG, entries

ENTRIES = {entry.id: entry for entry in entries(CATALOG.with_name("sbus-relay.catalog"))}


def test_each_event_has_one_entry_and_no_other_is_there() -> None:
    assert list(ENTRIES) == [event.id for event in EVENTS]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.name)
def test_an_entry_says_what_happened_with_all_facts(event: Event) -> None:
    entry = ENTRIES[event.id]
    assert entry.headers["Defined-By"] == "sbusd"
    assert "man:sbus-relay(8)" in entry.headers["Documentation"]
    assert 10 < len(entry.headers["Subject"]) < 100
    assert all(len(line) <= 80 for line in entry.body.splitlines())
    facts = {f"SBUS_{field.upper()}" for _, field, _, _ in string.Formatter().parse(event.words) if field}
    assert set(re.findall(r"@(\w+)@", entry.body)) == facts
