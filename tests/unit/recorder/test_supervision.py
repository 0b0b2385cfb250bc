"""What the service manager is told, and when."""

from __future__ import annotations

import os

import pytest

from sbusd.recorder.supervision import STATUS_SECONDS, Supervision

NOTIFIED = {"NOTIFY_SOCKET": "/run/notify"}


class Manager:
    """A service manager with a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[str] = []

    def make(self, **environment: str) -> Supervision:
        return Supervision({**NOTIFIED, **environment}, self.told.append, lambda: self.now)


@pytest.fixture
def manager() -> Manager:
    return Manager()


def test_beginning_and_end_are_told(manager: Manager) -> None:
    supervision = manager.make()
    supervision.extend()
    supervision.ready()
    supervision.stopping()
    assert manager.told == ["EXTEND_TIMEOUT_USEC=30000000", "READY=1", "STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000"]


def test_signs_of_life_come_in_half_the_time(manager: Manager) -> None:
    supervision = manager.make(WATCHDOG_USEC="20000000", WATCHDOG_PID=str(os.getpid()))
    assert supervision.due == 110.0
    for _ in range(3):
        manager.now += 5
        supervision.turn(lambda: "")
    assert manager.told == ["WATCHDOG=1"]
    assert supervision.due == 120.0


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}])
def test_without_a_watchdog_nothing_is_due(manager: Manager, environment: dict[str, str]) -> None:
    supervision = manager.make(**environment)
    assert supervision.due is None
    manager.now += 1_000
    supervision.turn(lambda: "")
    assert manager.told == []


def test_a_status_is_told_when_it_changes_and_not_too_often(manager: Manager) -> None:
    supervision = manager.make()
    supervision.turn(lambda: "1 row")
    supervision.turn(lambda: "2 rows")
    manager.now += STATUS_SECONDS
    supervision.turn(lambda: "3 rows")
    manager.now += STATUS_SECONDS
    supervision.turn(lambda: "3 rows")
    assert manager.told == ["STATUS=1 row", "STATUS=3 rows"]


def test_without_a_manager_nobody_is_told() -> None:
    told: list[str] = []
    supervision = Supervision({}, told.append)
    supervision.ready()
    supervision.turn(lambda: "x")
    assert told == []
