"""Names of users and processes, and how long they are cached."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from sbusd.ctl import processes
from sbusd.ctl.processes import NameCache, Process, command_name, user_name
from sbusd.ctl.responses import connection_info


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


def test_the_number_of_a_user() -> None:
    assert processes.user_id("root") == processes.user_id("0") == 0
    assert processes.user_id("no-such-user") is None
    assert processes.user_id("") is None


def test_a_process_is_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int | None] = []

    def process_of(pid: int | None, since: float | None) -> Process:
        assert since == 5.5
        looks.append(pid)
        return Process(f"run-{len(looks)}")

    monkeypatch.setattr(processes, "process_of", process_of)
    book, each = NameCache(), connection_info({"id": 1, "pid": 77, "uid": 0, "since": 5.5})
    shown = []
    for _ in range(5):
        shown.append(book.of(each)["command"])
        book.keep([1])
    assert (shown, looks) == (["run-1"] * 5, [77])
    assert book.of(each)["command"] == "run-2"


def test_those_that_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = iter(["old", "new"])
    monkeypatch.setattr(processes, "process_of", lambda _pid, _since: Process(next(reported)))
    book, each = NameCache(), connection_info({"id": 1, "pid": 77})
    assert book.of(each) == {"user": "-", "command": "old", "unit": "-"}
    book.keep([2])
    assert book.of(each)["command"] == "new"


def test_users() -> None:
    assert NameCache().user(0) == "root"
