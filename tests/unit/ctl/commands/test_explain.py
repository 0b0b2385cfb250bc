"""Whether a user may, in words."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sbusd.ctl.commands.explain import Action, blocking_lines, line
from sbusd.ctl.main import application
from sbusd.ctl.responses import BadResponseError

DENIED = {"key": "lab/\x1b", "allowed": False, "error": "EPERM", "rule": "rule 1 of f", "reason": "refused by rule 1 of f"}


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


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> FakeBus:
    fake = FakeBus()
    monkeypatch.setattr("sbusd.ctl.settings.Settings.connect", lambda *_: fake)
    return fake


def test_the_verdict_is_one_line(bus: FakeBus) -> None:
    result = CliRunner().invoke(application(), ["explain", "root", "subscribe", "lab/*"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "root may not subscribe to lab/\\x1b: EPERM: refused by rule 1 of f\n"
    assert bus.asked == [(b"!/bus/explain", b"0\0subscribe\0lab/*")]


def test_json_is_passed_on(bus: FakeBus) -> None:
    result = CliRunner().invoke(application(), ["explain", "7", "publish", "a", "--json=short"])
    assert json.loads(result.stdout) == DENIED
    assert bus.asked == [(b"!/bus/explain", b"7\0publish\0a")]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [(["nobody-is-called-this", "publish", "a"], 1, "unknown user"), (["0", "read", "a"], 2, "read")],
)
def test_a_wrong_argument_is_told(bus: FakeBus, arguments: list[str], status: int, says: str) -> None:
    result = CliRunner().invoke(application(), ["explain", *arguments])
    assert result.exit_code == status
    assert says in result.stderr
    assert bus.asked == []


def test_other_verdicts() -> None:
    assert line({"key": "", "allowed": True}, "alice", Action.SUBSCRIBE) == "alice may subscribe to ''"
    assert line({"key": "a", "allowed": True, "reason": "r"}, "alice", Action.PUBLISH) == "alice may publish to a: r"
    with pytest.raises(BadResponseError):
        line({"key": "a"}, "alice", Action.PUBLISH)


def test_who_can_wait_and_who_can_block_is_said_in_a_line_of_its_own() -> None:
    allowed: dict[str, object] = {"allowed": True}
    assert blocking_lines({"waits_for_others": True, **allowed}) == ["Messages published with --wait wait for recipients of any user."]
    (line,) = blocking_lines({"waits_for_others": False, **allowed})
    assert line.endswith("of the same user only, because the key is private.")
    (line,) = blocking_lines({"blocks_others": True, **allowed})
    assert line == "Subscribers with blocking/hard/block can block publishers of any user."
    (line,) = blocking_lines({"blocks_others": False, **allowed})
    assert line == "Subscribers with blocking/hard/block can block publishers of the same user only."
    assert blocking_lines(allowed) == [], "an older bus says neither"
    assert blocking_lines({"waits_for_others": True, "allowed": False}) == [], "who may not publish waits for nobody"
