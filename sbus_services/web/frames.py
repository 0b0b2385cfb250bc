"""The JSON frames between a browser and the gateway. No I/O. Spec: sbus-web(8), "FRAMES"."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass

from sbus import Gap, Item, Message, Peer, Reconnected
from sbus.protocol.errors import ErrorCode, SbusError
from sbus.protocol.keys import bytes_of
from sbus.protocol.printable import printable

MAX_FRAME_BYTES = 1 << 20
"""The longest frame of a browser: enough for the largest payload of the bus in Base64, or with each byte escaped as ``\\n``."""

MAX_ID = (1 << 53) - 1
"""The largest whole number that every browser has."""

REQUESTS = {
    "subscribe": ("pattern",),
    "unsubscribe": ("pattern",),
    "publish": ("key", "payload", "payload_base64"),
    "connections": (),
    "stats": (),
}
"""The members of each request, besides ``type`` and ``id``."""


class InvalidFrameError(SbusError, ValueError):
    """A frame that is not a request; ``id`` is the one in it, if it has a valid one."""

    def __init__(self, words: str, number: int | None = None) -> None:
        super().__init__(words)
        self.id = number


@dataclass(frozen=True, slots=True)
class BrowserRequest:
    """One request of a browser. ``key`` is its key or pattern."""

    id: int
    kind: str
    key: bytes = b""
    payload: bytes = b""


def parse_request(text: str) -> BrowserRequest:
    """Return the request in a frame.

    Raises:
        InvalidFrameError: it is not a request; the text names the member that is wrong.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidFrameError("the frame is not JSON: nested too deeply") from None
    except ValueError as error:
        raise InvalidFrameError(f"the frame is not JSON: {printable(str(error), 120)}") from None
    if not isinstance(value, dict):
        raise InvalidFrameError("the frame is not a JSON object")
    number = value.get("id")
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_ID:
        raise InvalidFrameError(f"id: must be a whole number from 0 to {MAX_ID}")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in REQUESTS:
        shown = f"'{printable(kind, 40)}'" if isinstance(kind, str) else "missing or not text"
        raise InvalidFrameError(f"type: {shown}; must be one of {', '.join(REQUESTS)}", number)
    for name in value.keys() - {"type", "id", *REQUESTS[kind]}:
        raise InvalidFrameError(f"{kind}: unknown member '{printable(name, 40)}'", number)
    if not REQUESTS[kind]:
        return BrowserRequest(number, kind)
    name = "key" if kind == "publish" else "pattern"
    key = _key(_text(value, kind, name, number), kind, name, number)
    return BrowserRequest(number, kind, key, _payload(value, number) if kind == "publish" else b"")


def hello(facts: Mapping[str, object]) -> str:
    """Return the first frame of a session."""
    return _frame("hello", facts)


def result(request: BrowserRequest, facts: Mapping[str, object]) -> str:
    """Return the response to *request*."""
    return _frame("result", {"id": request.id, "request": request.kind, **facts})


def error(words: str, *, number: int | None = None, request: str | None = None, code: ErrorCode | None = None) -> str:
    """Return the frame for a request that failed, or for a frame that is not a request."""
    return _frame("error", {"id": number, "request": request, "code": code.name if code else None, "error": printable(words, 1_000)})


def state(words: str) -> str:
    """Return the frame that says whether the gateway is connected to the bus."""
    return _frame("bus", {"state": words})


def item(pattern: str, found: Item) -> str:
    """Return the frame for an item of the subscription to *pattern*."""
    if isinstance(found, Message):
        return _frame("message", {"pattern": pattern, "key": found.key, "sender": _sender(found.sender), **_shown(found.payload)})
    if isinstance(found, Gap):
        return _frame("gap", {"pattern": pattern, "lost": found.lost})
    if isinstance(found, Reconnected):
        return _frame("reconnected", {"pattern": pattern, "seconds": round(found.seconds, 3)})
    return _frame("gap", {"pattern": pattern, "lost": found.count})  # replaced: not with the default order


def _frame(kind: str, facts: Mapping[str, object]) -> str:
    """Return a frame in ASCII. A byte of a key that is not UTF-8 is an escaped surrogate, which JSON can have and UTF-8 cannot."""
    return json.dumps({"type": kind, **facts}, separators=(",", ":"))


def _sender(peer: Peer | None) -> Mapping[str, object] | None:
    """Return the sender; its ids are null if it is not a user of this host."""
    if peer is None:
        return None
    is_local = not peer.origin_bytes
    ids = {name: getattr(peer, name) if is_local else None for name in ("uid", "gid", "pid")}
    return {"connection": peer.connection, **ids, "origin": peer.origin or None}


def _shown(payload: bytes) -> Mapping[str, object]:
    """Return *payload* as text, or in Base64 if it is not UTF-8."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _text(value: Mapping[str, object], kind: str, name: str, number: int) -> str:
    """Return the text under *name*. Raises InvalidFrameError."""
    found = value.get(name)
    if not isinstance(found, str):
        raise InvalidFrameError(f"{kind}: {name}: {'missing' if found is None else 'must be text'}", number)
    return found


def _key(text: str, kind: str, name: str, number: int) -> bytes:
    """Return a key or pattern as bytes. Raises InvalidFrameError."""
    try:
        key = bytes_of(text)
    except UnicodeEncodeError:
        raise InvalidFrameError(f"{kind}: {name}: has a surrogate that is not a byte of a key", number) from None
    if b"\0" in key:
        raise InvalidFrameError(f"{kind}: {name}: has a NUL", number)
    return key


def _payload(value: Mapping[str, object], number: int) -> bytes:
    """Return the payload of a publication. Raises InvalidFrameError."""
    if ("payload" in value) == ("payload_base64" in value):
        raise InvalidFrameError("publish: needs either payload or payload_base64", number)
    if "payload" in value:
        try:
            return _text(value, "publish", "payload", number).encode()
        except UnicodeEncodeError:
            raise InvalidFrameError("publish: payload: has a surrogate; send bytes as payload_base64", number) from None
    try:
        return base64.b64decode(_text(value, "publish", "payload_base64", number), validate=True)
    except (binascii.Error, ValueError) as wrong:
        if isinstance(wrong, InvalidFrameError):
            raise
        raise InvalidFrameError("publish: payload_base64: is not Base64", number) from None
