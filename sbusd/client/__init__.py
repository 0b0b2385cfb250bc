"""The Python client: ``Bus`` for blocking programs, ``AsyncBus`` for asyncio. Each name is imported at its first use: most programs use few
of them, and asyncio alone takes longer to import than the rest."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbusd.client.asyncio.bus import AsyncBus
    from sbusd.client.asyncio.streams import AsyncPresence, AsyncSubscription, AsyncTap
    from sbusd.client.bus_socket import Scope, bus_address
    from sbusd.client.errors import (
        AnswerLost,
        BadAddressError,
        CallTimeout,
        Closed,
        Disconnected,
        ErrorCode,
        ForkedError,
        InboxFull,
        MessagesMissing,
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
        Unsupported,
    )
    from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Overflow
    from sbusd.client.items import Change, Gap, Item, Message, PresenceEvent, PresenceItem, Reconnected, Replaced, TapItem, TapRecord
    from sbusd.client.notices import raise_missing
    from sbusd.client.pattern_hints import PatternWarning
    from sbusd.client.rpc.caller_access import Allow, Twins
    from sbusd.client.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Outcome
    from sbusd.client.rpc.service import Request, ServiceError
    from sbusd.client.statistics import Statistics
    from sbusd.client.sync.bus import Bus
    from sbusd.client.sync.streams import Presence, Subscription, Tap
    from sbusd.protocol.credentials import Peer

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
    "ForkedError",
    "Gap",
    "InboxFull",
    "Item",
    "Message",
    "MessagesMissing",
    "NoBus",
    "NoRecipient",
    "NotSubscribed",
    "Outcome",
    "Overflow",
    "PatternWarning",
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
    "Replaced",
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
    "Unsupported",
    "bus_address",
    "raise_missing",
]

_MODULES = {
    "sbusd.client.bus_socket": ("Scope", "bus_address"),
    "sbusd.client.rpc.caller_access": ("Allow", "Twins"),
    "sbusd.client.asyncio.bus": ("AsyncBus",),
    "sbusd.client.asyncio.streams": ("AsyncPresence", "AsyncSubscription", "AsyncTap"),
    "sbusd.client.rpc.calls": ("Answer", "CALL_SECONDS", "CALL_TRIES", "Outcome"),
    "sbusd.client.errors": (
        "AnswerLost",
        "BadAddressError",
        "CallTimeout",
        "Closed",
        "Disconnected",
        "ForkedError",
        "ErrorCode",
        "InboxFull",
        "MessagesMissing",
        "NoBus",
        "NoRecipient",
        "NotSubscribed",
        "PayloadTooLarge",
        "PeerDisconnected",
        "ProtocolError",
        "RemoteError",
        "RemoteRefusal",
        "SbusError",
        "TimedOut",
        "Unanswered",
        "Unsupported",
    ),
    "sbusd.client.notices": ("raise_missing",),
    "sbusd.client.pattern_hints": ("PatternWarning",),
    "sbusd.client.inbox": ("Overflow", "QUEUE_BYTES", "QUEUE_PACKETS"),
    "sbusd.client.items": (
        "Change",
        "Gap",
        "Item",
        "Message",
        "PresenceEvent",
        "PresenceItem",
        "Reconnected",
        "Replaced",
        "TapItem",
        "TapRecord",
    ),
    "sbusd.client.rpc.service": ("Request", "ServiceError"),
    "sbusd.client.statistics": ("Statistics",),
    "sbusd.client.sync.bus": ("Bus",),
    "sbusd.client.sync.streams": ("Presence", "Subscription", "Tap"),
    "sbusd.protocol.credentials": ("Peer",),
}
"""The names of each module."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import *name* at its first use, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
