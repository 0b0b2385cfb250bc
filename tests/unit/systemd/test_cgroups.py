"""The unit of a process, which no user can forge."""

from __future__ import annotations

import os
import time

import pytest

from sbusd.systemd import cgroups as processes
from sbusd.systemd.cgroups import start_ticks, unit_at, unit_of_cgroups, unit_of_process


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/nginx.service\n", "nginx.service"),
        ("0::/system.slice/system-getty.slice/getty@tty1.service\n", "getty@tty1.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app.service\n", "user@1000.service/app.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", "user@1000.service/init.scope"),
        ("0::/system.slice/box.service/nginx.service\n", "box.service"),  # what a delegated unit makes below itself
        ("0::/user.slice/user-1000.slice/user@1000.service/nginx.service/x.service\n", "user@1000.service/nginx.service"),
        ("12:pids:/a\n1:name=systemd:/system.slice/old.service\n0::/\n", "old.service"),
        ("0::/system.slice/_cgroup.service\n", "cgroup.service"),
        ("0::/\n", None),
        ("0::/docker/123\n", None),
        ("", None),
        ("garbage", None),
        ("0::/a\tb.service\n", None),
        ("0::/" + "x" * 300 + ".service\n", None),
    ],
)
def test_known_groups(text: str, unit: str | None) -> None:
    assert unit_of_cgroups(text) == unit


@pytest.mark.parametrize("pid", [None, 0, -1, 2**30])
def test_an_invalid_process_has_no_unit(pid: int | None) -> None:
    assert unit_of_process(pid) is None


def test_this_process_is_read() -> None:
    unit = unit_of_process(os.getpid())
    assert unit is None or "." in unit


@pytest.fixture
def in_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process is in a unit, also where the tests run outside of one."""
    monkeypatch.setattr(processes, "unit_of_process", lambda _pid: "app.service")


@pytest.mark.usefixtures("in_a_unit")
def test_a_reused_number_is_another_process() -> None:
    pid = os.getpid()
    assert unit_at(pid, time.time()) == "app.service"
    assert unit_at(pid, 1_000.0) is unit_at(pid, None) is unit_at(None, time.time()) is unit_at(1 << 22, time.time()) is None


@pytest.mark.usefixtures("in_a_unit")
def test_a_process_that_changes_meanwhile_has_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = iter([1, 2])
    assert start_ticks(os.getpid()) is not None
    monkeypatch.setattr(processes, "start_ticks", lambda _pid: next(begun))
    assert unit_at(os.getpid(), time.time()) is None
