"""How comings and goings are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sbusd.client import Change, Gap, Peer, PresenceEvent, PresenceItem
from sbusd.ctl.commands.presence import event_json, event_line, follow
from sbusd.ctl.output import JsonStyle

PEER = Peer(7, 61_999, 100, 999_999_999, b"!/cred/100/61999/999999999")
COME = PresenceEvent(Change.CONNECT, PEER, 1.5)
SUBSCRIBED = PresenceEvent(Change.SUBSCRIBE, PEER, 1.5, b"a\n\xff")


def test_lines() -> None:
    assert event_line(COME).split(b"\t")[1:] == [b"connect", b"7", b"61999", b"999999999(-)\n"]
    assert event_line(SUBSCRIBED).split(b"\t")[5] == b"a\\n\\xff\n"


def test_json() -> None:
    assert event_json(COME) == {"type": "connect", "time": 1.5, "id": 7, "uid": 61_999, "gid": 100, "pid": 999_999_999}
    assert event_json(SUBSCRIBED)["pattern_base64"] == "YQr/"


def test_following(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    items: Iterator[PresenceItem] = iter([COME, Gap(3), SUBSCRIBED, COME])
    follow(lambda _timeout: next(items), JsonStyle.SHORT, 2, None)
    out, err = capsysbinary.readouterr()
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["connect", "gap", "subscribe"]
    assert b"lost 3 events" in err
    assert next(items) is COME


def test_following_ends_with_the_time() -> None:
    def nothing(timeout: float | None) -> PresenceItem:
        assert timeout == 1.0
        raise TimeoutError

    follow(nothing, JsonStyle.OFF, None, 6.0, clock=lambda: 5.0)
