"""The Python client: ``Bus`` for blocking programs, ``AsyncBus`` for asyncio. Each name is imported at its first use: most programs use few
of them, and asyncio alone takes longer to import than the rest."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sbus.protocol import __version__ as __version__

if TYPE_CHECKING:
    from sbus.asyncio.bus import AsyncBus
    from sbus.asyncio.store import AsyncJob, AsyncStore
    from sbus.asyncio.stored_streams import AsyncRemoteStore
    from sbus.asyncio.streams import AsyncPresence, AsyncSubscription, AsyncTap
    from sbus.blobs import Blob, BlobRecipient
    from sbus.bus_socket import Scope, bus_address
    from sbus.errors import (
        AnswerLost,
        BadAddressError,
        BlobRefused,
        BlobTooLarge,
        CallTimeout,
        Closed,
        Disconnected,
        ErrorCode,
        ForkedError,
        InboxFull,
        MessagesMissing,
        NoBlobService,
        NoBus,
        NoRecipient,
        NotSubscribed,
        PayloadTooLarge,
        PeerDisconnected,
        ProtocolError,
        RemoteError,
        RemoteRefusal,
        SbusError,
        ServiceError,
        TimedOut,
        Unanswered,
        Unsupported,
    )
    from sbus.inbox import QUEUE_BYTES, QUEUE_PACKETS, Overflow
    from sbus.items import (
        BlobGone,
        BlobMessage,
        Change,
        Gap,
        Item,
        Message,
        PresenceEvent,
        PresenceItem,
        Reconnected,
        Replaced,
        TapItem,
        TapRecord,
    )
    from sbus.notices import raise_missing
    from sbus.pattern_hints import PatternWarning
    from sbus.protocol.credentials import Peer
    from sbus.rpc.caller_access import Allow, Twins
    from sbus.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Outcome
    from sbus.rpc.cancellation import Cancellation
    from sbus.rpc.requests import Request
    from sbus.rpc.stream_call import STREAM_WINDOW
    from sbus.statistics import Statistics
    from sbus.store.errors import StoreError, StoreNotRunning
    from sbus.store.items import Put, QueuedJob, StoredMessage, StoreGap, StoreItem
    from sbus.store.requests import NewMessage
    from sbus.sync.bus import Bus
    from sbus.sync.store import Job, Store
    from sbus.sync.stored_streams import RemoteStore
    from sbus.sync.streams import Presence, Subscription, Tap

__all__ = [
    "CALL_SECONDS",
    "CALL_TRIES",
    "QUEUE_BYTES",
    "QUEUE_PACKETS",
    "STREAM_WINDOW",
    "Allow",
    "Answer",
    "AnswerLost",
    "AsyncBus",
    "AsyncJob",
    "AsyncPresence",
    "AsyncRemoteStore",
    "AsyncStore",
    "AsyncSubscription",
    "AsyncTap",
    "BadAddressError",
    "Blob",
    "BlobData",
    "BlobGone",
    "BlobMessage",
    "BlobRecipient",
    "BlobRefused",
    "BlobTooLarge",
    "Bus",
    "CallTimeout",
    "Cancellation",
    "Change",
    "Closed",
    "Disconnected",
    "ErrorCode",
    "ForkedError",
    "Gap",
    "InboxFull",
    "Item",
    "Job",
    "Message",
    "MessagesMissing",
    "NewMessage",
    "NoBlobService",
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
    "Put",
    "QueuedJob",
    "Reconnected",
    "RemoteError",
    "RemoteRefusal",
    "RemoteStore",
    "Replaced",
    "Request",
    "SbusError",
    "Scope",
    "ServiceError",
    "Statistics",
    "Store",
    "StoreError",
    "StoreGap",
    "StoreItem",
    "StoreNotRunning",
    "StoredMessage",
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
    "sbus.bus_socket": ("Scope", "bus_address"),
    "sbus.rpc.caller_access": ("Allow", "Twins"),
    "sbus.asyncio.bus": ("AsyncBus",),
    "sbus.asyncio.streams": ("AsyncPresence", "AsyncSubscription", "AsyncTap"),
    "sbus.rpc.calls": ("Answer", "CALL_SECONDS", "CALL_TRIES", "Outcome"),
    "sbus.errors": (
        "AnswerLost",
        "BadAddressError",
        "BlobRecipient",
        "BlobRefused",
        "BlobTooLarge",
        "CallTimeout",
        "Closed",
        "Disconnected",
        "ForkedError",
        "ErrorCode",
        "InboxFull",
        "MessagesMissing",
        "NoBlobService",
        "NoBus",
        "NoRecipient",
        "NotSubscribed",
        "PayloadTooLarge",
        "PeerDisconnected",
        "ProtocolError",
        "RemoteError",
        "RemoteRefusal",
        "SbusError",
        "ServiceError",
        "TimedOut",
        "Unanswered",
        "Unsupported",
    ),
    "sbus.notices": ("raise_missing",),
    "sbus.pattern_hints": ("PatternWarning",),
    "sbus.inbox": ("Overflow", "QUEUE_BYTES", "QUEUE_PACKETS"),
    "sbus.blobs": ("Blob", "BlobRecipient"),
    "sbus.memory_files": ("BlobData",),
    "sbus.items": (
        "BlobGone",
        "BlobMessage",
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
    "sbus.rpc.cancellation": ("Cancellation",),
    "sbus.rpc.requests": ("Request",),
    "sbus.rpc.stream_call": ("STREAM_WINDOW",),
    "sbus.statistics": ("Statistics",),
    "sbus.asyncio.store": (
        "AsyncJob",
        "AsyncStore",
    ),
    "sbus.asyncio.stored_streams": ("AsyncRemoteStore",),
    "sbus.store.errors": (
        "StoreError",
        "StoreNotRunning",
    ),
    "sbus.store.items": (
        "Put",
        "QueuedJob",
        "StoreGap",
        "StoreItem",
        "StoredMessage",
    ),
    "sbus.store.requests": ("NewMessage",),
    "sbus.sync.store": (
        "Job",
        "Store",
    ),
    "sbus.sync.stored_streams": ("RemoteStore",),
    "sbus.sync.bus": ("Bus",),
    "sbus.sync.streams": ("Presence", "Subscription", "Tap"),
    "sbus.protocol.credentials": ("Peer",),
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
