"""The items of subscriptions, presence and taps: messages, events and records, and losses at their place between them. No I/O.

Spec: sbus-protocol(7) §5, "Events", for presence, and §6, ``!/tap``, for taps.
"""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sbus.protocol.credentials import UNKNOWN_ID, Credentials, Peer, make_peer, vouched_peer
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import EVENT_HEAD, text_of
from sbus.protocol.packets import Publish, parse_packet

PRESENCE_PATTERN = EVENT_HEAD
"""The pattern for all events that this client may see."""


_NAMES_ELSEWHERE = {"data": "payload", "body": "payload", "subject": "key", "topic": "key", "channel": "key"}
"""Attributes of messages in nats-py, redis-py, paho-mqtt and pika, and their names here."""


@dataclass(frozen=True, slots=True)
class Message:
    """A publication: its routing key, any bytes without NUL, and its payload, any bytes.

    ``sender`` is the publisher, as verified by the bus, while ``sender/on`` is set for this connection; otherwise None. If it has an
    ``origin``, the publisher only passes the message on.
    """

    key_bytes: bytes
    payload: bytes
    sender: Peer | None = None

    @property
    def key(self) -> str:
        """The key as text. Bytes that are not UTF-8 are surrogates, as in os.fsdecode(); ``publish`` accepts them."""
        return text_of(self.key_bytes)

    @property
    def blob(self) -> memoryview | None:
        """The content of a blob, read-only, or None: only a ``BlobMessage`` has one."""
        return None

    @property
    def text(self) -> str:
        """The payload as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return self.payload.decode()

    def json(self) -> Any:
        """Return the value that the payload has as JSON. Raises ValueError if it is not JSON."""
        return json.loads(self.payload)

    if not TYPE_CHECKING:  # a type checker would accept every attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError, which names the attribute here for one of another library."""
            hint = f": its name here is {known!r}" if (known := _NAMES_ELSEWHERE.get(name)) else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)


@dataclass(frozen=True, slots=True)
class Gap:
    """Here ``lost`` packets are missing; 0 means an unknown number, perhaps none.

    The bus discarded them because its queue for this connection was full. It is then not known which subscription they were for, and each
    gets the gap. Or this subscription's own inbox was full, with ``Overflow.DISCARD``. The number is unknown if the bus crashed and was
    restored, or if an exception of a signal handler came while a packet was received.
    """

    lost: int


_NO_DATA = memoryview(b"")

_UNKNOWN = Credentials(UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID)


@dataclass(frozen=True, slots=True)
class BlobMessage(Message):
    """A message with a large content, from a subscription with *blobs*. ``payload`` is the reference that was on the bus."""

    blob: memoryview = _NO_DATA
    """The content, read-only. It never changes, and all recipients share its pages."""
    media_type: str = ""
    """Its type, such as ``image/png``. Its owner chooses it."""
    owner: Credentials = _UNKNOWN
    """The process that has created the blob, from the kernel. The sender of the message may be another one."""


@dataclass(frozen=True, slots=True)
class BlobGone(Gap):
    """Here the blob of a message is missing, because of ``reason``: it has expired, for example. ``lost`` is 1."""

    reason: str
    message: Message
    """The message with the reference."""


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Here the connection was lost and made again, with all subscriptions; messages that were published meanwhile are missing.

    ``attempts`` is the number of attempts, of which the last succeeded; ``seconds`` is the time without a bus. The connection has a new
    address, and subscriptions under the old one have been moved to it. Modes set by ``tell`` and ``control`` have been set again; queued
    replies are lost. Consecutive reconnections are merged into one.
    """

    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Replaced:
    """The bus replaced ``count`` messages in its queue for this connection by newer ones of the same keys, which follow.

    Only with the order ``latest``: ``bus.tell("order/latest")``. It is not known which subscription they were for, so each gets it.
    Consecutive replacements are merged into one.
    """

    count: int


Item = Message | Gap | Replaced | Reconnected
"""The items of a subscription."""


class Change(enum.Enum):
    """The kind of an event; the value is its name on the wire."""

    CONNECT = "connect"
    DISCONNECT = "disconnect"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


@dataclass(frozen=True, slots=True)
class PresenceEvent:
    """A connection has begun or ended, or has subscribed to or unsubscribed from a pattern."""

    change: Change
    peer: Peer
    time: float
    """Seconds since 1970, by the bus's clock."""
    pattern: str | None = None
    """Only of SUBSCRIBE and UNSUBSCRIBE. Bytes that are not UTF-8 are surrogates."""


PresenceItem = PresenceEvent | Gap | Reconnected
"""The items of presence: after a gap or a reconnection, ask for the members again."""


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
    def key(self) -> str | None:
        """The key or pattern of the event, or None if it has none. Bytes that are not UTF-8 are surrogates."""
        key = self.key_bytes
        return None if key is None else text_of(key)

    @property
    def key_bytes(self) -> bytes | None:
        """The key or pattern of the event, as bytes, or None if it has none."""
        if self.message is not None:
            return self.message.key_bytes
        for name in ("pattern", "key"):
            if isinstance(encoded := self.fields.get(f"{name}_base64"), str):
                return base64.b64decode(encoded)
            if isinstance(text := self.fields.get(name), str):
                return text.encode("utf-8", "surrogatepass")
        return None


TapItem = TapRecord | Gap | Reconnected
"""The items of a tap: after a gap or a reconnection records are missing."""


def presence_item(item: Item) -> PresenceItem:
    """Return the event in a message under ``!/event/``; a gap or a reconnection is returned as it is.

    Raises:
        ProtocolError: EPROTO if the message is not an event.
    """
    if isinstance(item, Replaced):
        return Gap(item.count)  # every event counts, even if a newer one has the same key
    if not isinstance(item, Message):
        return item
    word, _, rest = item.key_bytes.removeprefix(EVENT_HEAD).partition(b"/")
    try:
        change = Change(word.decode("ascii"))
        value = json.loads(item.payload)
        peer = make_peer(int(value["id"]), value["cred"].encode("ascii"))
        pattern = text_of(rest.partition(b"/")[2]) if change in (Change.SUBSCRIBE, Change.UNSUBSCRIBE) else None
        return PresenceEvent(change, peer, int(value["time"]) / 1e9, pattern)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        words = f"the bus sent an invalid event: {item.key_bytes[:64]!r} with {item.payload[:64]!r}"
        raise ProtocolError(ErrorCode.EPROTO, words) from error


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
        origin = fields.get("vouched")
        sender = peer if peer is None or not isinstance(origin, str) else vouched_peer(peer, origin.encode("utf-8", "surrogatepass"))
        message = Message(parsed.key, parsed.payload, sender)
    return TapRecord(kind, time, peer, fields, message)
