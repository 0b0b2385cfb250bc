"""Taps of the bus's traffic, and their typed records. No I/O. Spec: sbus-protocol(7) §6, ``!/tap``."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from sbusd.client.inbox import Inbox
from sbusd.client.messages import Gap, Item, Message, Reconnected, Replaced
from sbusd.client.pending_replies import Call, Expects
from sbusd.client.session import Session
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import Publish, control_packet, parse_packet
from sbusd.protocol.peers import Peer, make_peer


@dataclass(frozen=True, slots=True)
class TapRecord:
    """One event of the bus's traffic.

    ``kind`` is ``message``, ``connect``, ``disconnect``, ``subscribe``, ``unsubscribe``, ``denial``, ``loss``, or one of a later version;
    ``fields`` are all members of its JSON line.
    """

    kind: str
    time: float
    """Seconds since 1970, by the bus's clock."""
    peer: Peer | None
    """The connection, or the sender of a message; None for a rejected connection, and for the bus itself."""
    fields: Mapping[str, object]
    message: Message | None = None
    """Only of the kind ``message``."""

    @property
    def key(self) -> bytes | None:
        """The key or pattern of the event, as bytes, or None if it has none."""
        if self.message is not None:
            return self.message.key
        for name in ("pattern", "key"):
            if isinstance(encoded := self.fields.get(f"{name}_base64"), str):
                return base64.b64decode(encoded)
            if isinstance(text := self.fields.get(name), str):
                return text.encode("utf-8", "surrogatepass")
        return None


TapItem = TapRecord | Gap | Reconnected
"""The items of a tap: after a gap or a reconnection records are missing."""


def begin_tap(session: Session, inbox: Inbox) -> Call:
    """Put the request for a tap into *session*, and return its call; records go to *inbox*, whose only pattern is that of the tap.

    Raises:
        ValueError: the connection already has a tap.
    """
    if session.tap_inbox is not None:
        raise ValueError("this connection already has a tap: close it, or use a second bus object")
    session.batching.request()
    packet = control_packet(controls.TAP_ON, inbox.patterns[0])
    call = session.send_call(Call(f"CMSG {repr(controls.TAP_ON)[1:]}", Expects.SILENCE), packet)
    session.tap_inbox = inbox
    session.remember_mode(controls.TAP_ON, packet)
    return call


def end_tap(session: Session, inbox: Inbox) -> None:
    """End the tap of *inbox*. Harmless when already ended."""
    if session.tap_inbox is not inbox:
        return
    session.tap_inbox = None
    inbox.patterns.clear()
    inbox.retire()
    packet = control_packet(controls.TAP_OFF)
    session.send_quietly(packet)
    session.remember_mode(controls.TAP_OFF, packet)


def tap_item(item: Item) -> TapItem:
    """Return the record in a packet of the tap; a gap or a reconnection is returned as it is.

    Raises:
        ProtocolError: EPROTO if the record is malformed.
    """
    if isinstance(item, Replaced):
        return Gap(item.count)  # every record counts, even if a newer one has the same key
    if not isinstance(item, Message):
        return item
    line, _, packet = item.payload.partition(b"\n")
    try:
        fields = json.loads(line)
        cred = fields.get("cred")
        peer = make_peer(int(fields["id"]), cred.encode("ascii")) if isinstance(cred, str) else None
        kind, time = str(fields["kind"]), int(fields["time"]) / 1e9
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid tap record: {line[:64]!r}") from error
    message: Message | None = None
    if kind == "message":
        parsed = parse_packet(packet)
        if not isinstance(parsed, Publish):
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid message in a tap record: {packet[:24]!r}")
        message = Message(parsed.key, parsed.payload, peer)
    return TapRecord(kind, time, peer, fields, message)
