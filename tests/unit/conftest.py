"""Switches and brokers in this process, and what programs share with their process, for every test of this folder."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_programs.systemd.signals import HANDLED
from tests.support.bus_fixtures import bus, harness, make_bus, make_harness

__all__ = ["bus", "harness", "make_bus", "make_harness"]


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Restore the handlers of this process, which a service replaces."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def systemd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that $NOTIFY_SOCKET names."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received:
        received.bind(str(folder / "notify"))
        received.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        yield received
