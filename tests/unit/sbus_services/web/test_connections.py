"""The list of connections: its pages, its limits, and the names of users."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from sbus.asyncio.look_ups import LookUps
from sbus.bus_documents import BadResponseError
from sbus.protocol import controls
from sbus_programs.systemd.processes import Process
from sbus_services.web.connections import MAX_CONNECTIONS, Names, ask, list_connections


class FakeBus:
    """Responds with pages by the place at which they begin."""

    def __init__(self, pages: Mapping[bytes | None, object]) -> None:
        self._pages = pages
        self.asked: list[bytes | None] = []

    async def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        assert key in {controls.CONNECTIONS, controls.STATS}
        self.asked.append(payload)
        page = self._pages[payload]
        return page if isinstance(page, bytes) else json.dumps(page).encode()


def page(ids: range, following: int | None, hidden: int = 0) -> dict[str, object]:
    return {"connections": [{"id": number, "uid": 0} for number in ids], "next": following, "hidden": hidden}


def test_all_pages_are_one_list() -> None:
    bus = FakeBus({None: page(range(40), 40, 2), b"40": page(range(40, 60), None, 3)})
    found = asyncio.run(list_connections(bus))
    assert found["connections"] == [{"id": number, "uid": 0} for number in range(60)]
    assert (found["hidden"], found["more"]) == (3, False)


def test_a_list_that_is_too_long_ends() -> None:
    pages: dict[bytes | None, object] = {None: page(range(900), 900)}
    for begin in range(900, 9_000, 900):
        pages[b"%d" % begin] = page(range(begin, begin + 900), begin + 900)
    bus = FakeBus(pages)
    found = asyncio.run(list_connections(bus))
    connections = found["connections"]
    assert isinstance(connections, list)
    assert (len(connections), found["more"]) == (MAX_CONNECTIONS, True)
    assert len(bus.asked) == 3


def test_pages_that_repeat_are_an_error() -> None:
    bus = FakeBus({None: page(range(5), 5), b"5": page(range(5), 5)})
    with pytest.raises(BadResponseError, match="the pages repeat"):
        asyncio.run(list_connections(bus))


@pytest.mark.parametrize("answer", [b"", b"\xff", b"[1]", b"[" * 100_000])
def test_a_response_that_is_not_an_object(answer: bytes) -> None:
    with pytest.raises(BadResponseError, match="invalid response to !/bus/stats: not"):
        asyncio.run(ask(FakeBus({None: answer}), controls.STATS))


def test_strange_members_are_left_out() -> None:
    bus = FakeBus({None: {"connections": [1, {"id": 1}], "next": "x", "hidden": None}})
    assert asyncio.run(list_connections(bus)) == {"connections": [{"id": 1}], "hidden": 0, "more": False}


def test_names_of_users_and_commands() -> None:
    mine = {"id": 1, "uid": 0, "pid": os.getpid(), "since": time.time()}
    items: list[object] = [mine, {"id": 2, "uid": 61_234, "pid": os.getpid(), "since": 5.0}, {"id": None, "uid": True, "pid": "x"}]
    items += [{"id": 3, "uid": -1, "pid": -1}, {"id": 4, "uid": 1 << 70, "pid": 1 << 70, "since": "now"}, {}]
    found = asyncio.run(Names().add({"connections": items, "hidden": 7}))
    assert (found["users"], found["hidden"]) == ({"0": pwd.getpwuid(0).pw_name}, 7)
    connections = found["connections"]
    assert isinstance(connections, list)
    command = Path("/proc/self/comm").read_text().strip()
    assert [each["command"] for each in connections] == [command] + [None] * 5


def test_names_are_read_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    reads: list[int | None] = []

    def user(uid: int) -> str:
        looks.append(uid)
        return "name"

    def process(pid: int | None, since: float | None) -> Process:
        assert since == 5.5
        reads.append(pid)
        return Process(f"run-{len(reads)}")

    monkeypatch.setattr("sbus_services.web.connections._user_name", user)
    monkeypatch.setattr("sbus_services.web.connections.process_of", process)
    names = Names()
    listing = {"connections": [{"id": 1, "uid": 1_000, "pid": 77, "since": 5.5}]}
    shown: list[object] = []
    for _ in range(5):
        connections = asyncio.run(names.add(listing))["connections"]
        assert isinstance(connections, list)
        shown += [each["command"] for each in connections]
    assert shown == ["run-1"] * 4 + ["run-2"]
    assert (looks, reads) == ([1_000], [77, 77])


def test_without_a_user_database_there_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr("sbus_services.web.connections._user_name", lambda _uid: str(answers.wait(60)))
    monkeypatch.setattr("sbus_services.web.connections.LookUps", partial(LookUps, 0.01))
    try:
        found = asyncio.run(Names().add({"connections": [{"id": 1, "uid": 1_000}], "hidden": 7}))
    finally:
        answers.set()
    assert found == {"connections": [{"id": 1, "uid": 1_000, "command": None}], "users": {}, "hidden": 7}


def test_those_that_have_gone_are_forgotten() -> None:
    names = Names()
    for begin in range(0, 5_000, 500):
        items = [{"id": begin + number, "uid": 100_000 + begin + number} for number in range(1, 501)]
        asyncio.run(names.add({"connections": items}))
    assert len(names._users) == len(names._commands) == 500
