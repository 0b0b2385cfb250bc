"""Who would receive a message, and who may publish or subscribe."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from sbus import Peer, RemoteRefusal
from sbus.bus_documents import BadResponseError
from sbus.protocol.errors import ErrorCode
from sbus_programs.systemd.processes import Process
from sbusctl.application import application
from sbusctl.commands.routing import Action, blocking_lines, explain_line, member_json, member_lines, trace_lines
from sbusctl.responses import trace_entry

PEER = Peer(7, 61_999, 100, 42, b"!/cred/100/61999/42")
PROCESS = Process("bash", "session-1.scope")

_HEAD = {"key": "a/b", "publishable": True, "reason": "no rule restricts publishing to this key"}
_BLOCKS = {"when_full": "block", "blocks": [{"id": 7}, {"id": None}], "blocks_count": 5}
_GETS = trace_entry({"id": 1, "pid": -1, "uid": 0, "patterns": ["a/*", "", "x\ny"], **_BLOCKS}, gets_it=True)
_NOT = trace_entry({"id": 22, "pid": -1, "uid": 0, "reason": "no pattern matches"}, gets_it=False)

DENIED = {"key": "lab/\x1b", "allowed": False, "error": "EPERM", "rule": "rule 1 of f", "reason": "refused by rule 1 of f"}


def test_the_table() -> None:
    page = member_lines([(PEER, PROCESS)], legend=True, width=None)
    assert [row.split() for row in page[:2]] == [["ID", "PID", "USER", "COMMAND", "UNIT"], ["7", "42", "61999", "bash", "session-1.scope"]]
    assert page[2:] == ["", "1 member listed."]
    assert member_lines([], legend=False, width=None) == []


def test_json() -> None:
    assert member_json(PEER, PROCESS) == {"id": 7, "uid": 61_999, "gid": 100, "pid": 42, "command": "bash", "unit": "session-1.scope"}


def test_the_verdict_the_table_and_the_sums() -> None:
    assert trace_lines(_HEAD, [_GETS, _NOT], 3, legend=True, width=None) == [
        "a/b: may be published: no rule restricts publishing to this key",
        "",
        "ID  PID  USER  COMMAND  RECEIVES  WHEN-FULL  BLOCKS  REASON",
        r" 1   -1  root  -        yes       block      7 +4    a/* '' x\ny",
        "22   -1  root  -        no        -          -       no pattern matches",
        "",
        "1 connection would receive it, 1 would not, 3 of other users hidden.",
    ]


def test_without_a_legend_there_are_the_verdict_and_the_rows() -> None:
    assert len(trace_lines(_HEAD, [_GETS, _NOT], 3, legend=False, width=None)) == 3


def test_a_recipient_with_hidden_patterns() -> None:
    (_, row) = trace_lines(_HEAD, [trace_entry({"id": 1}, gets_it=True)], 0, legend=False, width=None)
    assert row.split() == ["1", "-", "-", "-", "yes", "-", "-", "-"]


def test_other_verdicts() -> None:
    def verdict(**head: object) -> str:
        return trace_lines(head, [], 0, legend=False, width=None)[0]

    assert verdict(key="!/x\x1b", publishable=False) == r"!/x\x1b: may not be published"
    assert verdict(key="a", publishable="yes", reason="r") == "a: not known whether it may be published: r"


class FakeBus:
    """Denies everything, and keeps what it was asked."""

    asked: list[tuple[bytes, bytes | None]]

    def __init__(self) -> None:
        self.asked = []

    def __enter__(self) -> FakeBus:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        self.asked.append((key, payload))
        return json.dumps(DENIED).encode()

    def members(self, key: bytes) -> list[Peer]:
        self.asked.append((b"!/bus/members", key))
        return []


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> FakeBus:
    fake = FakeBus()
    monkeypatch.setattr("sbusctl.settings.Settings.connect", lambda *_: fake)
    return fake


def test_the_verdict_is_one_line(bus: FakeBus) -> None:
    result = CliRunner().invoke(application(), ["explain", "root", "subscribe", "lab/*"])
    assert (result.exit_code, result.stderr) == (7, "")
    assert result.stdout == "root may not subscribe to lab/\\x1b: EPERM: refused by rule 1 of f\n"
    assert bus.asked == [(b"!/bus/explain", b"0\0subscribe\0lab/*")]


def test_json_is_passed_on(bus: FakeBus) -> None:
    result = CliRunner().invoke(application(), ["explain", "7", "publish", "a", "--json=short"])
    assert (result.exit_code, json.loads(result.stdout)) == (7, DENIED)
    assert bus.asked == [(b"!/bus/explain", b"7\0publish\0a")]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [(["no-such-user", "publish", "a"], 2, "USER: unknown user 'no-such-user'\n"), (["0", "read", "a"], 2, "read")],
)
def test_an_invalid_argument_is_reported(bus: FakeBus, arguments: list[str], status: int, says: str) -> None:
    result = CliRunner().invoke(application(), ["explain", *arguments])
    assert result.exit_code == status
    assert says in result.stderr
    assert bus.asked == []


def test_other_explanations() -> None:
    assert explain_line({"key": "", "allowed": True}, "alice", Action.SUBSCRIBE) == "alice may subscribe to ''"
    assert explain_line({"key": "a", "allowed": True, "reason": "r"}, "alice", Action.PUBLISH) == "alice may publish to a: r"
    with pytest.raises(BadResponseError):
        explain_line({"key": "a"}, "alice", Action.PUBLISH)


class RuledBus(FakeBus):
    """A bus that knows the groups of the latest connection, and allows the group 5."""

    groups: list[int]
    is_owner = True

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        self.asked.append((key, payload))
        named = (payload or b"").partition(b"\0")[0].partition(b":")[2]
        if named and not self.is_owner:
            raise RemoteRefusal(ErrorCode.EPERM, "only owners")
        groups = [int(each) for each in named.split(b",")] if named else self.groups
        source = "request" if named else "connection" if groups else None
        return json.dumps({"uid": 0, "key": "a", "allowed": 5 in groups, "groups": groups, "groups_from": source}).encode()


@pytest.mark.parametrize(
    ("connected", "at_login", "is_owner", "lines"),
    [
        ([0], (0,), True, ["root may not publish to a"]),
        ([], (0, 5), True, ["root may publish to a"]),
        ([0], (0, 5), False, ["root may not publish to a", "… lacks {5}, …"]),
        ([0], (0, 5), True, ["root may not publish to a", "… lacks {5}, …", "After a new login: root may publish to a"]),
        (
            [0, 5],
            (0, 7),
            True,
            ["root may publish to a", "… lacks {7} and still has {5}, …", "After a new login: root may not publish to a"],
        ),
    ],
)
def test_groups_that_the_user_database_has_since_given_are_named(
    monkeypatch: pytest.MonkeyPatch, connected: list[int], at_login: tuple[int, ...], is_owner: bool, lines: list[str]
) -> None:
    fake = RuledBus()
    fake.groups, fake.is_owner = connected, is_owner
    monkeypatch.setattr("sbusctl.settings.Settings.connect", lambda *_: fake)
    monkeypatch.setattr("sbusctl.commands.routing.login_groups", {0: at_login}.get)
    monkeypatch.setattr("sbusctl.commands.routing.group_name", "{{{}}}".format)
    result = CliRunner().invoke(application(), ["explain", "0", "publish", "a"])
    shown = [
        re.sub(r"^The (latest )?connection of \S+( command)?", "…", line)
        for line in result.stdout.replace("0 may", "root may").splitlines()
    ]
    assert [re.sub(r", unlike the user database: .*", ", …", line) for line in shown] == lines


def test_who_can_be_blocked_and_who_can_block_is_a_separate_line() -> None:
    allowed: dict[str, object] = {"allowed": True}
    assert blocking_lines({"waits_for_others": True, **allowed}) == ["Messages published with --wait wait for recipients of any user."]
    assert blocking_lines({"waits_for_others": True, "may_vouch": True, **allowed})[1:] == [
        "The user has the vouch right: it can publish in the name of others."
    ]
    assert blocking_lines({"waits_for_others": True, "may_vouch": False, "may_deliver": False, **allowed})[1:] == []
    assert blocking_lines({"waits_for_others": True, "may_vouch": True, "may_deliver": True, **allowed})[2:] == [
        "The user has the deliver right: it can publish to one connection alone."
    ]
    (line,) = blocking_lines({"waits_for_others": False, **allowed})
    assert line.endswith("of the same user only, because the key is private.")
    (line,) = blocking_lines({"blocks_others": True, **allowed})
    assert line == "Subscribers with blocking/hard/block can block publishers of any user."
    (line,) = blocking_lines({"blocks_others": False, **allowed})
    assert line == "Subscribers with blocking/hard/block can block publishers of the same user only."
    assert blocking_lines(allowed) == [], "an older bus says neither"
    assert blocking_lines({"waits_for_others": True, "allowed": False}) == [], "a denied publisher is never blocked"
