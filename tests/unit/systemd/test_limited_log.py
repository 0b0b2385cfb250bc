"""A flood of one cause is one record with the number of occurrences, and cannot fill the memory of the program."""

from __future__ import annotations

import pytest

from sbusd.relay.log_messages import AUTHENTICATION_FAILED
from sbusd.systemd.limited_log import MAX_CAUSES, QUIET_SECONDS, LimitedLog


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
def journal(clock: Clock) -> LimitedLog:
    return LimitedLog("sbus-relay", clock=clock)


def test_a_flood_is_one_record_in_a_while(journal: LimitedLog, clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(100):
        journal.record_limited(AUTHENTICATION_FAILED, "10.0.0.9", address="10.0.0.9", reason="not signed")
    clock.seconds += QUIET_SECONDS
    journal.record_limited(AUTHENTICATION_FAILED, "10.0.0.9", address="10.0.0.9", reason="not signed")
    first, second = capfd.readouterr().err.splitlines()
    assert first == "sbus-relay: rejected 1 unauthenticated requests from 10.0.0.9: not signed"
    assert second == "sbus-relay: rejected 100 unauthenticated requests from 10.0.0.9: not signed"


def test_another_cause_is_logged_at_once(journal: LimitedLog, capfd: pytest.CaptureFixture[str]) -> None:
    for address in ("10.0.0.8", "10.0.0.9"):
        journal.record_limited(AUTHENTICATION_FAILED, address, address=address, reason="x")
    assert len(capfd.readouterr().err.splitlines()) == 2


def test_another_user_with_many_addresses_fills_no_memory(journal: LimitedLog, clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(3 * MAX_CAUSES):
        journal.record_limited(AUTHENTICATION_FAILED, str(number), address=str(number), reason="x")
    assert len(capfd.readouterr().err.splitlines()) == MAX_CAUSES + 1
    assert len(journal._quiet_until) <= MAX_CAUSES + 1
    clock.seconds += QUIET_SECONDS
    journal.record_limited(AUTHENTICATION_FAILED, "new", address="new", reason="x")
    assert capfd.readouterr().err


def test_another_user_writes_no_line_of_his_own(journal: LimitedLog, capfd: pytest.CaptureFixture[str]) -> None:
    journal.record_limited(AUTHENTICATION_FAILED, "x", address="10.0.0.9", reason="evil\nsbus-relay: all is well\x1b[2J")
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "\x1b" not in said
