"""The service manager as a service sees it: there or not, with a watchdog or without one."""

from __future__ import annotations

import os

import pytest

from sbusd.systemd.notify import ServiceManager

NOTIFIED = {"NOTIFY_SOCKET": "/run/notify"}


def test_what_is_told_is_sent() -> None:
    told: list[str] = []
    ServiceManager(NOTIFIED, told.append).tell("READY=1\nSTATUS=well")
    assert told == ["READY=1\nSTATUS=well"]


def test_without_a_manager_nobody_is_told() -> None:
    told: list[str] = []
    manager = ServiceManager({}, told.append)
    manager.tell("READY=1")
    assert not manager.is_there
    assert told == []


def test_a_manager_that_does_not_listen_ends_nothing() -> None:
    asked: list[str] = []

    def fail(state: str) -> None:
        asked.append(state)
        raise OSError("nobody there")

    ServiceManager(NOTIFIED, fail).tell("READY=1")
    assert asked == ["READY=1"]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid())}, 20.0),
        ({"WATCHDOG_USEC": "20000000"}, 20.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "x"}, 0.0),
        ({}, 0.0),
    ],
)
def test_a_sign_of_life_is_asked_of_this_process_or_not_at_all(environment: dict[str, str], seconds: float) -> None:
    assert ServiceManager(environment).watchdog_seconds == seconds
