"""Ordinary messages: the store subscribes to the keys of a stream. What it cannot store becomes a gap in the stream.

Spec: sbus-store(8), "ORDINARY MESSAGES".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sbus import AsyncSubscription
from sbus.errors import RemoteRefusal, TimedOut
from sbus.items import Gap, Item, Message, Reconnected, Replaced
from sbus.protocol.credentials import Peer
from sbus.protocol.framed_data import MAX_DATA_BYTES
from sbus.protocol.printable import printable
from sbus_programs.config.store import StreamSettings
from sbus_services.store.bus_connections import ServingBus
from sbus_services.store.calls.responses import CallError
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, NewMessage, Sender
from sbus_services.store.engine.stream import KeyMatcher
from sbus_services.store.operation_queue import SERVICE, OperationQueue, QueuedOperation

GROUP_ITEMS = 256
"""Messages that are stored by one operation."""

MAX_GROUPS = 4
"""Groups of one stream that are not yet stored. Then the connection is not read, and the bus queues, within the store's own limits."""

MAX_MESSAGE_BYTES = MAX_DATA_BYTES - 4_096
"""Longest key and payload of a message that is stored: a response can return it."""

MAX_KEYS_OF_GAPS = 8
"""Gaps for the messages of one group; further ones share one, for all keys, so that no user fills a stream with gaps."""

RETRY_SECONDS = 1.0
"""Interval after which a gap is stored that could not be stored."""

SUBSCRIBE_SECONDS = 10.0
"""Interval between two attempts to subscribe, if a rule of the bus refuses it."""

SETTLE_SECONDS = 0.005
"""Interval of looking whether messages are committed."""

LOST = "lost by the bus"
NOT_RUNNING = "the store was not running"
NOT_CONNECTED = "the store was not connected to the bus"
CHANGED = "the keys of the stream were changed"
NOT_SUBSCRIBED = "a rule of the bus did not allow the store to subscribe"

Gaps = Counter[tuple[bytes, str]]
"""Missing messages, by pattern and reason."""


@dataclass(slots=True)
class _Group:
    """Some messages of a stream, and losses between them; then what became of them, as the operation found it."""

    parts: list[list[NewMessage] | int] = field(default_factory=list)
    """A number is that of packets that the bus discarded here, 0 for an unknown number."""
    missing: Gaps = field(default_factory=Counter)
    """What could not be stored before."""
    failed: Gaps = field(default_factory=Counter)
    stored: list[NewMessage] = field(default_factory=list)


class StreamIntake:
    """Stores the ordinary messages of one *stream*. *stored* is called after each commit with the new messages, without any for a gap."""

    def __init__(
        self,
        stream: StreamSettings,
        operations: OperationQueue[Engine],
        counts: Counter[str],
        report: Callable[[str], None],
        stored: Callable[[str, Sequence[NewMessage]], None],
    ) -> None:
        self.stream = stream
        self._operations = operations
        self._counts = counts
        self._report = report
        self._stored = stored
        self._room = asyncio.Semaphore(MAX_GROUPS)
        self._missing: Gaps = Counter()
        self._keys = KeyMatcher(stream.patterns)
        self._messages: AsyncSubscription | None = None
        self._received = self._finished = 0

    async def run(self, bus: ServingBus, interruption: str, ready: Callable[[], None]) -> None:
        """Store messages until the connection ends. Messages before this are missing because of *interruption*.

        *ready* is called when the bus has the subscription, or has refused it: then the store asks again, and only what is put is stored.
        Raises SbusError, OSError.
        """
        is_ready = False

        def begun() -> None:
            nonlocal is_ready
            if not is_ready:
                is_ready = True
                ready()

        while True:
            try:
                await self._stored_from(bus, interruption, begun)
            except RemoteRefusal as refusal:
                words = "ordinary messages are not stored until a rule of the bus allows the store to subscribe"
                self._report(f"stream {self.stream.name}: {words}: {refusal.said}")
            begun()
            interruption = NOT_SUBSCRIBED
            await asyncio.sleep(SUBSCRIBE_SECONDS)

    async def _stored_from(self, bus: ServingBus, interruption: str, ready: Callable[[], None]) -> None:
        """Subscribe, and store messages. Raises RemoteRefusal, SbusError, OSError."""
        async with bus.subscribe(*self.stream.patterns) as messages:
            self._messages = messages
            await self._interrupted(interruption)
            ready()
            while True:
                try:
                    items = await messages.receive_many(GROUP_ITEMS, RETRY_SECONDS if self._missing else None)
                except TimedOut:
                    items = []
                await self.take(items)  # also without items: gaps that could not be stored may be stored now

    async def settled(self) -> None:
        """Return when all messages that the connection has received until now are committed, or could not be."""
        target = self._received + (self._messages.pending if self._messages is not None else 0)
        while self._finished < target:
            await asyncio.sleep(SETTLE_SECONDS)

    async def take(self, items: Sequence[Item]) -> None:
        """Give *items* to the committer, and wait if too many are not yet stored."""
        self._received += len(items)
        group = _Group()
        for item in items:
            if isinstance(item, Message):
                self._add(group, item)
            elif isinstance(item, Gap):
                self._counts["lost"] += item.lost
                group.parts.append(item.lost)
            elif isinstance(item, Reconnected | Replaced):
                group.parts.append(0)
        group.missing, self._missing = self._missing, Counter()
        if not group.parts and not group.missing:
            self._finished += len(items)
            return
        await self._room.acquire()
        name = self.stream.name

        def done(performed: QueuedOperation[Engine]) -> None:
            self._room.release()
            self._finished += len(items)
            self._committed(group, performed.error)

        weight = sum(len(part) for part in group.parts if isinstance(part, list))
        try:
            self._operations.submit(SERVICE, lambda engine: _store(engine, name, group), done, max(1, weight))
        except CallError as error:  # the store stops; the next start stores a gap
            self._room.release()
            self._finished += len(items)
            self._report(f"stream {name}: {weight} messages were not stored: {error.words}")

    async def _interrupted(self, reason: str) -> None:
        """Store a gap if the stream has messages."""
        name = self.stream.name

        def add_gap(engine: Engine) -> None:
            if engine.last_seq(name):
                # Who stops the store, or changes its keys, knows that messages are missing.
                is_expected = reason == CHANGED or (reason == NOT_RUNNING and engine.run_start.was_stopped)
                engine.add_gap(name, b"", 0, reason, is_expected=is_expected)

        try:
            await self._operations.run(SERVICE, add_gap)
        except (EngineError, CallError) as error:
            self._report(f"stream {name}: cannot store a gap: {error}")
            self._missing[b"", reason] += 0

    def _add(self, group: _Group, item: Message) -> None:
        """Add a message to *group*, unless the store never keeps its key."""
        if not self._keys.matches(item.key_bytes):
            return
        if len(item.key_bytes) + len(item.payload) > MAX_MESSAGE_BYTES or item.sender is None:
            reason = "EMSGSIZE longer than a response" if item.sender else "EINVAL the bus named no sender"
            _count(self._missing, item.key_bytes, reason)
            return
        message = NewMessage(item.key_bytes, item.payload, sender_of(item.sender))
        if group.parts and isinstance(last := group.parts[-1], list):
            last.append(message)
        else:
            group.parts.append([message])

    def _committed(self, group: _Group, error: BaseException | None) -> None:
        """Note what became of *group*."""
        name = self.stream.name
        if error is None:
            self._counts["received"] += len(group.stored)
            if group.stored:
                self._stored(name, group.stored)
            if gaps := group.missing + group.failed:
                self._counts["not_stored"] += sum(gaps.values())
                self._stored(name, ())
                for (_, reason), count in gaps.items():
                    self._report(f"stream {name}: {count or 'unknown'} messages were not stored: {reason}")
            return
        reason = f"{error.code} {error.reason}" if isinstance(error, EngineError) else "EIO internal error"
        self._report(f"stream {name}: cannot store messages: {printable(str(error), 256)}")
        for (pattern, earlier), count in group.missing.items():
            self._missing[pattern, earlier] += count
        for part in group.parts:
            if isinstance(part, int):
                self._missing[b"", LOST] += part
            else:
                for message in part:
                    _count(self._missing, message.key, reason)


def _store(engine: Engine, name: str, group: _Group) -> None:
    """Store *group*, in the committer's thread. What a limit of a user prevents becomes a gap. Raises EngineError."""
    group.stored.clear()
    group.failed.clear()
    for (pattern, reason), count in group.missing.items():
        engine.add_gap(name, pattern, count, reason)
    for part in group.parts:
        if isinstance(part, int):
            engine.add_gap(name, b"", part, LOST)
            continue
        failed: Gaps = Counter()
        for message, outcome in zip(part, engine.put_many(name, part), strict=True):
            if isinstance(outcome, EngineError):
                _count(failed, message.key, f"{outcome.code} {outcome.reason}")
            else:
                group.stored.append(message)
        for (pattern, reason), count in failed.items():
            engine.add_gap(name, pattern, count, reason)
        group.failed.update(failed)


def _count(gaps: Gaps, key: bytes, reason: str) -> None:
    """Count a missing message; the pattern of its gap is its key, while there are few."""
    at = (key, reason)
    if at not in gaps and len(gaps) >= MAX_KEYS_OF_GAPS:
        at = (b"", reason.partition(" ")[0])
    gaps[at] += 1


def sender_of(peer: Peer) -> Sender:
    """Return the publisher of a message for the store."""
    return Sender(peer.uid, peer.gid, peer.pid, peer.origin)
