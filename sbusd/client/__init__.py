"""The Python client: ``Bus`` for blocking programs, ``AsyncBus`` for asyncio. Each name is imported at its first use: most programs use few
of them, and asyncio alone takes longer to import than the rest."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbusd.client.asyncio.bus import AsyncBus
    from sbusd.client.asyncio.store import AsyncJob, AsyncStore
    from sbusd.client.asyncio.stored_streams import AsyncRemoteStore
    from sbusd.client.asyncio.streams import AsyncPresence, AsyncSubscription, AsyncTap
    from sbusd.client.blobs import Blob, BlobRecipient
    from sbusd.client.bus_socket import Scope, bus_address
    from sbusd.client.errors import (
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
    from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Overflow
    from sbusd.client.items import (
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
    from sbusd.client.notices import raise_missing
    from sbusd.client.pattern_hints import PatternWarning
    from sbusd.client.rpc.caller_access import Allow, Twins
    from sbusd.client.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Outcome
    from sbusd.client.rpc.cancellation import Cancellation
    from sbusd.client.rpc.requests import Request
    from sbusd.client.rpc.stream_call import STREAM_WINDOW
    from sbusd.client.statistics import Statistics
    from sbusd.client.store.errors import StoreError, StoreNotRunning
    from sbusd.client.store.items import Put, QueuedJob, StoredMessage, StoreGap, StoreItem
    from sbusd.client.store.requests import NewMessage
    from sbusd.client.sync.bus import Bus
    from sbusd.client.sync.store import Job, Store
    from sbusd.client.sync.stored_streams import RemoteStore
    from sbusd.client.sync.streams import Presence, Subscription, Tap
    from sbusd.protocol.credentials import Peer

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
    "sbusd.client.bus_socket": ("Scope", "bus_address"),
    "sbusd.client.rpc.caller_access": ("Allow", "Twins"),
    "sbusd.client.asyncio.bus": ("AsyncBus",),
    "sbusd.client.asyncio.streams": ("AsyncPresence", "AsyncSubscription", "AsyncTap"),
    "sbusd.client.rpc.calls": ("Answer", "CALL_SECONDS", "CALL_TRIES", "Outcome"),
    "sbusd.client.errors": (
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
    "sbusd.client.notices": ("raise_missing",),
    "sbusd.client.pattern_hints": ("PatternWarning",),
    "sbusd.client.inbox": ("Overflow", "QUEUE_BYTES", "QUEUE_PACKETS"),
    "sbusd.client.blobs": ("Blob", "BlobRecipient"),
    "sbusd.client.memory_files": ("BlobData",),
    "sbusd.client.items": (
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
    "sbusd.client.rpc.cancellation": ("Cancellation",),
    "sbusd.client.rpc.requests": ("Request",),
    "sbusd.client.rpc.stream_call": ("STREAM_WINDOW",),
    "sbusd.client.statistics": ("Statistics",),
    "sbusd.client.asyncio.store": (
        "AsyncJob",
        "AsyncStore",
    ),
    "sbusd.client.asyncio.stored_streams": ("AsyncRemoteStore",),
    "sbusd.client.store.errors": (
        "StoreError",
        "StoreNotRunning",
    ),
    "sbusd.client.store.items": (
        "Put",
        "QueuedJob",
        "StoreGap",
        "StoreItem",
        "StoredMessage",
    ),
    "sbusd.client.store.requests": ("NewMessage",),
    "sbusd.client.sync.store": (
        "Job",
        "Store",
    ),
    "sbusd.client.sync.stored_streams": ("RemoteStore",),
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
