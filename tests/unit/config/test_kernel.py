"""What the kernel of this machine supports, and one that does not."""

from __future__ import annotations

import os
import socket

import pytest

from sbusd.config.kernel import reports_processes
from sbusd.dataplane.peer import pidfd_of


def test_it_is_reported_whether_the_bus_gets_pidfds() -> None:
    own, other = socket.socketpair()
    with own, other:
        pidfd = pidfd_of(own.fileno())
    if pidfd is not None:
        os.close(pidfd)
    before = os.listdir("/proc/self/fd")
    assert reports_processes() is (pidfd is not None)
    assert os.listdir("/proc/self/fd") == before


def test_an_older_kernel_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.config.kernel._SO_PEERPIDFD", 0x7FFF_FFFF)
    assert not reports_processes()
