"""Names of users and connections, and how long they are cached."""

from __future__ import annotations

import pytest

from sbus_programs.systemd.processes import Process
from sbusctl import processes
from sbusctl.processes import NameCache, user_name
from sbusctl.responses import connection_info


def test_user_names() -> None:
    assert user_name(0) == "root"
    assert user_name(None) == "-"
    assert user_name(3_999_999_998) == "3999999998"
    assert user_name(1 << 80) == str(1 << 80)
    assert user_name(-5) == "-5"


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
    assert book.of(each) == {"user": "-", "command": "old", "unit": "-", "slice": "-"}
    book.keep([2])
    assert book.of(each)["command"] == "new"


def test_users() -> None:
    assert NameCache().user(0) == "root"
