"""The table of members."""

from __future__ import annotations

from sbusd.client import Peer
from sbusd.ctl.commands.members import lines, member_json
from sbusd.ctl.processes import Process

PEER = Peer(7, 61_999, 100, 42, b"!/cred/100/61999/42")
PROCESS = Process("bash", "session-1.scope")


def test_the_table() -> None:
    page = lines([(PEER, PROCESS)], legend=True, width=None)
    assert [row.split() for row in page[:2]] == [["ID", "PID", "USER", "COMMAND", "UNIT"], ["7", "42", "61999", "bash", "session-1.scope"]]
    assert page[2:] == ["", "1 member listed."]
    assert lines([], legend=False, width=None) == []


def test_json() -> None:
    assert member_json(PEER, PROCESS) == {"id": 7, "uid": 61_999, "gid": 100, "pid": 42, "command": "bash", "unit": "session-1.scope"}
