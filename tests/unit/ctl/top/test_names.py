"""Names that are remembered."""

from __future__ import annotations

import pytest

from sbusd.ctl.processes import Process
from sbusd.ctl.responses import connection_info
from sbusd.ctl.top import names
from sbusd.ctl.top.names import NameCache


def test_a_process_is_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int | None] = []

    def process_of(pid: int | None, since: float | None) -> Process:
        assert since == 5.5
        looks.append(pid)
        return Process(f"run-{len(looks)}")

    monkeypatch.setattr(names, "process_of", process_of)
    book, each = NameCache(), connection_info({"id": 1, "pid": 77, "uid": 0, "since": 5.5})
    shown = []
    for _ in range(5):
        shown.append(book.of(each)["command"])
        book.keep([1])
    assert (shown, looks) == (["run-1"] * 5, [77])
    assert book.of(each)["command"] == "run-2"


def test_those_that_have_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    told = iter(["old", "new"])
    monkeypatch.setattr(names, "process_of", lambda _pid, _since: Process(next(told)))
    book, each = NameCache(), connection_info({"id": 1, "pid": 77})
    assert book.of(each) == {"user": "-", "command": "old", "unit": "-"}
    book.keep([2])
    assert book.of(each)["command"] == "new"


def test_users() -> None:
    assert NameCache().user(0) == "root"
