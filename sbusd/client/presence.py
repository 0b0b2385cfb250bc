"""Events of connections and subscriptions, as typed objects. No I/O. Spec: sbus-protocol(7) §5, "Events"."""

from __future__ import annotations

import base64
import enum
import json
from dataclasses import dataclass

from sbusd.client.messages import Gap, Item, Message, Reconnected, Replaced
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import EVENT_HEAD
from sbusd.protocol.peers import Peer, make_peer

PRESENCE_PATTERN = EVENT_HEAD
"""The pattern for all events that this client may see."""


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
    pattern: bytes | None = None
    """Only of SUBSCRIBE and UNSUBSCRIBE."""


PresenceItem = PresenceEvent | Gap | Reconnected
"""The items of presence: after a gap or a reconnection, ask for the members again."""


def presence_item(item: Item) -> PresenceItem:
    """Return the event in a message under ``!/event/``; a gap or a reconnection is returned as it is.

    Raises:
        ProtocolError: EPROTO if the message is not an event.
    """
    if isinstance(item, Replaced):
        return Gap(item.count)  # every event counts, even if a newer one has the same key
    if not isinstance(item, Message):
        return item
    word, _, rest = item.key.removeprefix(EVENT_HEAD).partition(b"/")
    try:
        change = Change(word.decode("ascii"))
        value = json.loads(item.payload)
        peer = make_peer(int(value["id"]), value["cred"].encode("ascii"))
        pattern = rest.partition(b"/")[2] if change in (Change.SUBSCRIBE, Change.UNSUBSCRIBE) else None
        return PresenceEvent(change, peer, int(value["time"]) / 1e9, pattern)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid event: {item.key[:64]!r} with {item.payload[:64]!r}") from error


def pattern_of(value: dict[str, object]) -> bytes | None:
    """Return the pattern in the JSON of an event, as bytes, or None if it has none. Raises ValueError if it is malformed."""
    if isinstance(encoded := value.get("pattern_base64"), str):
        return base64.b64decode(encoded, validate=True)
    return text.encode() if isinstance(text := value.get("pattern"), str) else None
