"""Frames: what a browser may send, and what it gets for each item of a subscription."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus import Gap, Message, Reconnected, Replaced
from sbus.protocol.credentials import make_peer, vouched_peer
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import text_of
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_services.web import frames


def request(**members: object) -> frames.BrowserRequest:
    return frames.parse_request(json.dumps(members))


def shown(frame: str) -> dict[str, Any]:
    assert frame.isascii()
    found = json.loads(frame)
    assert isinstance(found, dict)
    return found


def test_requests() -> None:
    assert request(id=0, type="subscribe", pattern="a/*") == frames.BrowserRequest(0, "subscribe", b"a/*")
    assert request(id=frames.MAX_ID, type="unsubscribe", pattern="") == frames.BrowserRequest(frames.MAX_ID, "unsubscribe")
    assert request(id=1, type="publish", key="ü", payload="ü") == frames.BrowserRequest(1, "publish", "ü".encode(), "ü".encode())
    assert request(id=1, type="publish", key="a", payload_base64="AP8=").payload == b"\0\xff"
    assert [request(id=1, type=kind).kind for kind in ("connections", "stats")] == ["connections", "stats"]


@given(st.binary().filter(lambda key: b"\0" not in key))
def test_a_key_of_any_bytes_can_be_sent_back(key: bytes) -> None:
    frame = shown(frames.item("", Message(key, b"")))
    assert request(id=1, type="publish", key=frame["key"], payload="").key == key
    assert frame["key"] == text_of(key)


@given(st.binary())
def test_a_payload_of_any_bytes_can_be_sent_back(payload: bytes) -> None:
    frame = shown(frames.item("a/", Message(b"a/b", payload)))
    members = {name: frame[name] for name in ("payload", "payload_base64") if name in frame}
    assert len(members) == 1
    assert request(id=1, type="publish", key="a", **members).payload == payload


@given(st.text())
def test_any_text_is_a_request_or_an_error(text: str) -> None:
    with pytest.raises(frames.InvalidFrameError):
        frames.parse_request(text)


@given(st.dictionaries(st.sampled_from(["id", "type", "pattern", "key", "payload", "payload_base64", "x"]), st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from([*frames.REQUESTS]), st.lists(st.integers(), max_size=2)
)))  # fmt: skip
def test_any_object_is_a_request_or_an_error(members: dict[str, object]) -> None:
    found: frames.BrowserRequest | frames.InvalidFrameError
    try:
        found = request(**members)
    except frames.InvalidFrameError as error:
        found = error
    assert found.id == members.get("id") or (found.id is None and isinstance(found, frames.InvalidFrameError))
    assert str(found) if isinstance(found, frames.InvalidFrameError) else found.kind == members["type"]


@pytest.mark.parametrize("number", ["9" * 5_000, "1e3", "1.0", "true", "null", '"1"', "-1", str(frames.MAX_ID + 1)])
def test_an_invalid_id(number: str) -> None:
    with pytest.raises(frames.InvalidFrameError) as wrong:
        frames.parse_request(f'{{"id": {number}, "type": "stats"}}')
    assert wrong.value.id is None


def test_the_largest_payload_fits_into_a_frame() -> None:
    for payload in ({"payload_base64": base64.b64encode(bytes(MAX_PACKET_BYTES)).decode()}, {"payload": "\n" * MAX_PACKET_BYTES}):
        assert len(json.dumps({"id": 1, "type": "publish", "key": "k" * 4_096, **payload})) < frames.MAX_FRAME_BYTES


def test_the_sender_of_a_message() -> None:
    peer = make_peer(7, b"!/cred/100/1000/42")
    sender = shown(frames.item("a/", Message(b"a/b", b"", peer)))["sender"]
    assert sender == {"connection": 7, "uid": 1000, "gid": 100, "pid": 42, "origin": None}
    author = vouched_peer(peer, b"!/host/alpha/!/cred/1/2/3")
    sender = shown(frames.item("a/", Message(b"a/b", b"", author)))["sender"]
    assert sender == {"connection": 7, "uid": None, "gid": None, "pid": None, "origin": "!/host/alpha/!/cred/1/2/3"}
    assert shown(frames.item("a/", Message(b"a/b", b"")))["sender"] is None


def test_losses() -> None:
    assert shown(frames.item("a/", Gap(5))) == {"type": "gap", "pattern": "a/", "lost": 5}
    assert shown(frames.item("a/", Gap(0)))["lost"] == 0
    assert shown(frames.item("a/", Replaced(2)))["lost"] == 2
    assert shown(frames.item("a/", Reconnected(3, 1.23456))) == {"type": "reconnected", "pattern": "a/", "seconds": 1.235}


def test_other_frames() -> None:
    asked = frames.BrowserRequest(3, "stats")
    assert shown(frames.result(asked, {"stats": {}})) == {"type": "result", "id": 3, "request": "stats", "stats": {}}
    assert shown(frames.state("connected")) == {"type": "bus", "state": "connected"}
    assert shown(frames.hello({"user": "x"})) == {"type": "hello", "user": "x"}
    found = shown(frames.error("no\n", number=1, request="stats", code=ErrorCode.EPERM))
    assert found == {"type": "error", "id": 1, "request": "stats", "code": "EPERM", "error": "no\\x0a"}
    assert shown(frames.error("x" * 5_000))["error"].endswith("…")
