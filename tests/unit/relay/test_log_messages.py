"""What the relay tells: one record for a flood of the same, with how many there were; whoever causes them cannot fill its memory."""

from __future__ import annotations

from typing import Any

import pytest

from sbusd.relay.log_messages import EVENTS, MAX_CAUSES, QUIET_SECONDS, STARTED, STRANGER, RelayJournal


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(clock: Clock) -> RelayJournal:
    return RelayJournal({}, clock=clock)


def test_a_flood_is_one_record_in_a_while(journal: RelayJournal, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(100):
        journal.tell_of(STRANGER, "10.0.0.9", address="10.0.0.9", reason="not signed")
    clock.seconds += QUIET_SECONDS
    journal.tell_of(STRANGER, "10.0.0.9", address="10.0.0.9", reason="not signed")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "sbus-relay: rejected 1 unauthenticated requests from 10.0.0.9: not signed"
    assert second == "sbus-relay: rejected 100 unauthenticated requests from 10.0.0.9: not signed"


def test_another_cause_is_logged_at_once(journal: RelayJournal, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("10.0.0.8", "10.0.0.9"):
        journal.tell_of(STRANGER, address, address=address, reason="x")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_stranger_with_many_addresses_fills_no_memory(journal: RelayJournal, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3 * MAX_CAUSES):
        journal.tell_of(STRANGER, str(number), address=str(number), reason="x")
    assert len(capsys.readouterr().err.splitlines()) == MAX_CAUSES + 1
    assert len(journal._told) <= MAX_CAUSES + 1
    clock.seconds += QUIET_SECONDS
    journal.tell_of(STRANGER, "new", address="new", reason="x")
    assert capsys.readouterr().err


def test_a_stranger_writes_no_line_of_his_own(journal: RelayJournal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.tell_of(STRANGER, "x", address="10.0.0.9", reason="evil\nsbus-relay: all is well\x1b[2J")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_under_systemd_a_record_has_its_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    sent: list[tuple[str, dict[str, Any]]] = []
    error = os.fstat(2)
    journal = RelayJournal({"JOURNAL_STREAM": f"{error.st_dev}:{error.st_ino}"}, lambda text, **fields: sent.append((text, fields)))
    journal.tell(STARTED, twin=1, redis="r", listen="l", trust="t")
    ((text, fields),) = sent
    assert text.startswith("started relaying for host 1")
    assert (fields["MESSAGE_ID"], fields["SBUS_TWIN"], fields["SBUS_EVENT"]) == (STARTED.id, "1", "started")


def test_each_event_has_an_id_of_its_own() -> None:
    assert len({event.id for event in EVENTS}) == len({event.name for event in EVENTS}) == len(EVENTS)
