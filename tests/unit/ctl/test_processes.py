"""Names of users and processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sbusd.ctl import processes
from sbusd.ctl.processes import command_name, unit_name, unit_of_cgroups, user_name


def test_user_names() -> None:
    assert user_name(0) == "root"
    assert user_name(None) == "-"
    assert user_name(3_999_999_998) == "3999999998"
    assert user_name(1 << 80) == str(1 << 80)
    assert user_name(-5) == "-5"


def test_command_names() -> None:
    assert command_name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert command_name(None) == "-"
    assert command_name(0) == "-"
    assert command_name(-1) == "-"
    assert command_name(1 << 40) == "-"


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/sbus.service\n", "sbus.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/reader.service\n", "reader.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/system.slice/docker.service/_a.service/payload\n", "a.service"),
        ("0::/system.slice/system-sbus.slice/sbus@a:b.service\n", "sbus@a:b.service"),
        ("12:cpu:/x.service\n1:name=systemd:/system.slice/old.service\n0::/\n", "old.service"),
        ("1:name=systemd:/system.slice/old.service\n", "old.service"),
        ("0::/user.slice\n", "-"),
        ("0::/\n", "-"),
        ("", "-"),
        ("nonsense\n\n:\n", "-"),
    ],
)
def test_units_of_cgroups(text: str, unit: str) -> None:
    assert unit_of_cgroups(text) == unit


def test_unit_names() -> None:
    assert unit_name(os.getpid()) == unit_of_cgroups(Path("/proc/self/cgroup").read_text())
    assert unit_name(None) == unit_name(0) == unit_name(-1) == unit_name(1 << 40) == "-"


def test_a_process_is_known_by_the_time_of_its_beginning() -> None:
    """A number that was given out again after the connection is somebody else's."""
    mine = processes.process_of(os.getpid(), time.time())
    assert mine.command == processes.command_name(os.getpid())
    assert processes.process_of(os.getpid(), 1_000.0) == processes.Process()
    assert processes.process_of(os.getpid(), None) == processes.Process()
    assert processes.process_of(None, time.time()) == processes.process_of(0, time.time()) == processes.Process()
    assert processes.process_of(1 << 22, time.time()) == processes.Process()


def test_one_that_changes_while_it_is_looked_at_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = iter([1, 2])
    monkeypatch.setattr(processes, "start_ticks", lambda _pid: next(begun))
    assert processes.process_of(os.getpid(), time.time()) == processes.Process()


def test_the_number_of_a_user() -> None:
    assert processes.user_id("root") == processes.user_id("0") == 0
    assert processes.user_id("no-such-user") is None
    assert processes.user_id("") is None
