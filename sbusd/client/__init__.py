"""The Python client: ``Bus`` for programs that wait, ``AsyncBus`` for asyncio. Re-exports only."""

from typing import TYPE_CHECKING, Any

from sbusd.client.address import Scope, bus_address
from sbusd.client.admission import Allow, Twins
from sbusd.client.calls import CALL_SECONDS, CALL_TRIES, Answer, Outcome
from sbusd.client.errors import (
    AnswerLost,
    BadAddressError,
    CallTimeout,
    Closed,
    Disconnected,
    ErrorCode,
    InboxFull,
    NoBus,
    NoRecipient,
    NotSubscribed,
    PayloadTooLarge,
    PeerDisconnected,
    ProtocolError,
    RemoteError,
    RemoteRefusal,
    SbusError,
    TimedOut,
    Unanswered,
)
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Overflow
from sbusd.client.messages import Gap, Item, Message, Reconnected
from sbusd.client.presence import Change, PresenceEvent, PresenceItem
from sbusd.client.service import Request, ServiceError
from sbusd.client.statistics import Statistics
from sbusd.client.sync import Bus
from sbusd.client.sync_streams import Presence, Subscription, Tap
from sbusd.client.tap import TapItem, TapRecord
from sbusd.protocol.peers import Peer

if TYPE_CHECKING:
    from sbusd.client.aio import AsyncBus
    from sbusd.client.aio_streams import AsyncPresence, AsyncSubscription, AsyncTap

__all__ = [
    "CALL_SECONDS",
    "CALL_TRIES",
    "QUEUE_BYTES",
    "QUEUE_PACKETS",
    "Allow",
    "Answer",
    "AnswerLost",
    "AsyncBus",
    "AsyncPresence",
    "AsyncSubscription",
    "AsyncTap",
    "BadAddressError",
    "Bus",
    "CallTimeout",
    "Change",
    "Closed",
    "Disconnected",
    "ErrorCode",
    "Gap",
    "InboxFull",
    "Item",
    "Message",
    "NoBus",
    "NoRecipient",
    "NotSubscribed",
    "Outcome",
    "Overflow",
    "PayloadTooLarge",
    "Peer",
    "PeerDisconnected",
    "Presence",
    "PresenceEvent",
    "PresenceItem",
    "ProtocolError",
    "Reconnected",
    "RemoteError",
    "RemoteRefusal",
    "Request",
    "SbusError",
    "Scope",
    "ServiceError",
    "Statistics",
    "Subscription",
    "Tap",
    "TapItem",
    "TapRecord",
    "TimedOut",
    "Twins",
    "Unanswered",
    "bus_address",
]


def __getattr__(name: str) -> Any:
    """Import the asyncio half when it is asked for: asyncio takes longer to import than the rest, and most programs do without."""
    if name not in ("AsyncBus", "AsyncPresence", "AsyncSubscription", "AsyncTap"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sbusd.client import aio  # noqa: PLC0415

    return getattr(aio, name)
