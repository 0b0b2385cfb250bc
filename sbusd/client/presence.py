"""Who comes and goes on the bus, as typed events. No I/O. Spec: sbus-protocol(7) §5, "Events"."""

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
"""What to subscribe to for all events that this client may know of."""


class Change(enum.Enum):
    """What happened to a connection; the value is its name on the wire."""

    CONNECT = "connect"
    DISCONNECT = "disconnect"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


@dataclass(frozen=True, slots=True)
class PresenceEvent:
    """A connection has come or gone, or has a pattern more or less."""

    change: Change
    peer: Peer
    time: float
    """Seconds since 1970, by the bus's clock."""
    pattern: bytes | None = None
    """Of SUBSCRIBE and UNSUBSCRIBE alone."""


PresenceItem = PresenceEvent | Gap | Reconnected
"""What presence yields: behind a gap or a reconnection, ask for the members anew."""


def presence_item(item: Item) -> PresenceItem:
    """Return the event that a message under ``!/event/`` tells; a gap or a reconnection as it is.

    Raises:
        ProtocolError: EPROTO if a message is no event, as no bus sends it.
    """
    if isinstance(item, Replaced):
        return Gap(item.count)  # of events each counts, also where a newer one has the same key
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
    """Return the pattern in the JSON of an event, all its bytes, or None if it has none. Raises ValueError if that is malformed."""
    if isinstance(encoded := value.get("pattern_base64"), str):
        return base64.b64decode(encoded, validate=True)
    return text.encode() if isinstance(text := value.get("pattern"), str) else None
