"""The notifications of the recorder: the watchdog in time, and the status when it changes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sbusd.recorder.status import STATUS_SECONDS, StatusReporter
from sbusd.systemd.service_manager import ServiceManager


class Systemd:
    """A socket in place of systemd's, and a clock that the test moves."""

    def __init__(self, folder: Path, ends: ExitStack) -> None:
        self.now = 100.0
        self.address = str(folder / "notify")
        self._ends = ends
        self._socket = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._socket.bind(self.address)
        self._socket.setblocking(False)

    def reporter(self, watchdog_seconds: float = 0.0) -> StatusReporter:
        """Return the reporter of a service with that watchdog."""
        manager = ServiceManager(self.address, watchdog_seconds)
        self._ends.callback(manager.close)
        return StatusReporter(manager, lambda: self.now)

    def received(self) -> list[str]:
        """Return the notifications since the last call."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(1000).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    with ExitStack() as ends:
        made = Systemd(folder, ends)
        monkeypatch.setenv("NOTIFY_SOCKET", made.address)
        yield made


def test_the_watchdog_is_notified_in_half_its_time(systemd: Systemd) -> None:
    reporter = systemd.reporter(20.0)
    assert reporter.due == 110.0
    for _ in range(3):
        systemd.now += 5
        reporter.turn(lambda: "")
    assert systemd.received() == ["WATCHDOG=1"]
    assert reporter.due == 120.0


def test_without_a_watchdog_nothing_is_due(systemd: Systemd) -> None:
    reporter = systemd.reporter()
    assert reporter.due is None
    systemd.now += 1_000
    reporter.turn(lambda: "")
    assert systemd.received() == []


def test_a_status_is_reported_when_it_changes_and_not_too_often(systemd: Systemd) -> None:
    reporter = systemd.reporter()
    reporter.turn(lambda: "1 row")
    reporter.turn(lambda: "2 rows")
    systemd.now += STATUS_SECONDS
    reporter.turn(lambda: "3 rows")
    systemd.now += STATUS_SECONDS
    reporter.turn(lambda: "3 rows")
    assert systemd.received() == ["STATUS=1 row", "STATUS=3 rows"]


def test_without_a_service_manager_the_status_is_not_computed() -> None:
    StatusReporter(ServiceManager()).turn(lambda: pytest.fail("computed"))
