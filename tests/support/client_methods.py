"""What the tests that try each argument of each public method of the client have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sbus import AsyncBus, Bus, Cancellation
from sbus.asyncio.store import AsyncJob, AsyncStore
from sbus.asyncio.stored_streams import AsyncRemoteStore
from sbus.asyncio.streams import AsyncPresence, AsyncSubscription
from sbus.store.items import Lease, StoredMessage
from sbus.sync.store import Job, Store
from sbus.sync.stored_streams import RemoteStore
from sbus.sync.streams import Presence, Subscription, Tap

REQUIRED: dict[str, Any] = {
    "key": "k/1",
    "data": b"x",
    "command": "none",
    "ticket": "x",
    "stream": "s",
    "reader": "r",
    "queue": "q",
    "pattern": "k/",
    "patterns": ["k/"],
    "seq": 1,
    "count": 1,
    "twin": 1,
    "to": 0,
    "fd": 0,
}
"""Arguments without a default."""

_A_JOB = Lease(1, StoredMessage("s", 1, 0.0, b"k", b"", 0, 0, 0), 1, 0.0, 1.0)


def subject(kind: type, bus: Any) -> Any:
    """Return an object of *kind* that uses *bus*, or a class to make an object of."""
    if kind in {Job, AsyncJob}:
        return kind(bus.store, "q", _A_JOB, 1.0)
    makers: dict[type, Callable[[], Any]] = {
        **dict.fromkeys((Bus, AsyncBus), lambda: bus),
        **dict.fromkeys((Subscription, AsyncSubscription), lambda: bus.subscribe("k/")),
        **dict.fromkeys((Presence, AsyncPresence), bus.presence),
        **dict.fromkeys((Store, AsyncStore), lambda: bus.store),
        **dict.fromkeys((RemoteStore, AsyncRemoteStore), lambda: bus.store.on(2)),
        Tap: lambda: bus.tap("k/"),
        Cancellation: Cancellation,
    }
    return makers.get(kind, lambda: kind)()
