"""Names and units of processes, which a later process with the same number does not get."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from sbusd.systemd import processes
from sbusd.systemd.processes import command_name


def test_command_names() -> None:
    assert command_name(os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert command_name(None) == "-"
    assert command_name(0) == "-"
    assert command_name(-1) == "-"
    assert command_name(1 << 40) == "-"


def test_the_unit_is_that_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a unit makes below itself can have any name: monitor --filter-unit would take it for a unit of the system."""
    text = "0::/system.slice/box.service/nginx.service\n"
    monkeypatch.setattr("sbusd.systemd.cgroups.open", lambda *_, **__: io.StringIO(text), raising=False)
    assert processes.process_of(os.getpid(), time.time()).unit == "box.service"


def test_a_process_is_known_by_the_time_of_its_beginning() -> None:
    """A process id that was reused after the connection belongs to another process."""
    mine = processes.process_of(os.getpid(), time.time())
    assert mine.command == processes.command_name(os.getpid())
    assert processes.process_of(os.getpid(), 1_000.0) == processes.Process()
    assert processes.process_of(os.getpid(), None) == processes.Process()
    assert processes.process_of(None, time.time()) == processes.process_of(0, time.time()) == processes.Process()
    assert processes.process_of(1 << 22, time.time()) == processes.Process()


def test_a_process_that_changes_during_the_lookup_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = iter([1, 2])
    monkeypatch.setattr(processes, "start_ticks", lambda _pid: next(begun))
    assert processes.process_of(os.getpid(), time.time()) == processes.Process()
