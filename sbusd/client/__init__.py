"""The Python client: ``Bus`` for programs that wait, ``AsyncBus`` for asyncio. Re-exports only."""

from typing import TYPE_CHECKING, Any

from sbusd.client.address import Scope, bus_address
from sbusd.client.errors import (
    AnswerLost,
    BadAddressError,
    Closed,
    Disconnected,
    ErrorCode,
    InboxFull,
    NoBus,
    NotSubscribed,
    PayloadTooLarge,
    ProtocolError,
    RemoteRefusal,
    SbusError,
    TimedOut,
    Unanswered,
)
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Overflow
from sbusd.client.messages import Gap, Item, Message, Reconnected
from sbusd.client.statistics import Statistics
from sbusd.client.sync import Bus, Subscription

if TYPE_CHECKING:
    from sbusd.client.aio import AsyncBus, AsyncSubscription

__all__ = [
    "QUEUE_BYTES",
    "QUEUE_PACKETS",
    "AnswerLost",
    "AsyncBus",
    "AsyncSubscription",
    "BadAddressError",
    "Bus",
    "Closed",
    "Disconnected",
    "ErrorCode",
    "Gap",
    "InboxFull",
    "Item",
    "Message",
    "NoBus",
    "NotSubscribed",
    "Overflow",
    "PayloadTooLarge",
    "ProtocolError",
    "Reconnected",
    "RemoteRefusal",
    "SbusError",
    "Scope",
    "Statistics",
    "Subscription",
    "TimedOut",
    "Unanswered",
    "bus_address",
]


def __getattr__(name: str) -> Any:
    """Import the asyncio half when it is asked for: asyncio takes longer to import than the rest, and most programs do without."""
    if name not in ("AsyncBus", "AsyncSubscription"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sbusd.client import aio  # noqa: PLC0415

    return getattr(aio, name)
