"""Last values for each new subscriber, sent to it alone, with the right ``deliver``. Spec: sbus-store(8), "LAST VALUES FOR SUBSCRIBERS".

A message that is published meanwhile can reach the subscriber before the older value of its key that the store sends. So the store notes
which keys change, and sends their newest values again, until none has changed. A subscriber can receive a value twice, but the last one
that it receives of a key is the newest.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sbus.errors import ProtocolError, SbusError
from sbus.items import Gap, Message, PresenceEvent, Reconnected, presence_item
from sbus.protocol.direct_messages import direct_packet
from sbus.protocol.framed_data import MAX_MESSAGES
from sbus.protocol.keys import EVENT_HEAD, bytes_of, pattern_matches
from sbus.protocol.packets import publish_packet
from sbus_services.store.bus_connections import ServingBus, passed_on
from sbus_services.store.calls.responses import RESPONSE_BYTES, CallError
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import EngineError, LastValues, Stored
from sbus_services.store.operation_queue import SCAN_WEIGHT

MAX_PENDING = 64
"""Subscriptions of one user that wait for their values. Those above it get none, which is counted."""

MAX_CHANGED = 4_096
"""Keys of one subscription that change while its values are sent; above that all are sent again."""

MAX_ROUNDS = 16
"""Times that changed keys are sent again to one subscriber."""


@dataclass(eq=False, slots=True)
class _Subscription:
    """A new subscription, and the keys that have changed since its values were read."""

    connection: int
    uid: int
    pattern: bytes
    changed: set[bytes] = field(default_factory=set)
    overflowed: bool = False


class NewSubscribers:
    """Sends last values. *settled* returns when all messages that the store has received are committed."""

    def __init__(
        self, context: StoreContext, counts: Counter[str], report: Callable[[str], None], settled: Callable[[], Awaitable[None]]
    ) -> None:
        self._context = context
        self._counts = counts
        self._report = report
        self._settled = settled
        self._users: OrderedDict[int, list[_Subscription]] = OrderedDict()
        self._serving: set[_Subscription] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def streams(self) -> set[str]:
        """The streams whose last values are sent."""
        return {each.name for each in self._context.routes.settings.streams if each.on_subscribe}

    async def run(self, bus: ServingBus, own: set[int]) -> None:
        """Serve subscribers until the connection ends, but for the connections *own*. Raises SbusError, OSError."""
        try:
            async with bus.subscribe(EVENT_HEAD + b"subscribe/") as events:
                while True:
                    item = await events.receive()
                    if isinstance(item, Gap | Reconnected):
                        self._counts["undelivered"] += 1
                        self._report("events of subscriptions were lost: some subscribers got no last values")
                    elif isinstance(item, Message):
                        self._begin(bus, item, own)
        finally:
            tasks, self._tasks = self._tasks, {}
            self._users.clear()
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    def changed(self, stream: str, keys: Sequence[bytes]) -> None:
        """Note that *stream* has new values."""
        if not self._serving or stream not in self.streams:
            return
        for each in self._serving:
            matching = [key for key in keys if pattern_matches(each.pattern, key)]
            if len(each.changed) + len(matching) > MAX_CHANGED:
                each.overflowed = True
            else:
                each.changed.update(matching)

    def _begin(self, bus: ServingBus, message: Message, own: set[int]) -> None:
        """Queue the subscription of an event."""
        event = presence_item(message)
        if not isinstance(event, PresenceEvent) or event.pattern is None or event.peer.connection in own:
            return
        pattern = bytes_of(event.pattern)
        if not any(each.on_subscribe for each in self._context.routes.with_last_values(pattern)):
            return
        uid = event.peer.uid
        user = self._context.charged.of(uid)
        waiting = self._users.setdefault(user, [])
        if len(waiting) >= MAX_PENDING:
            self._counts["undelivered"] += 1
            self._report(f"a subscription got no last values: user {user} has {MAX_PENDING} that wait for theirs")
            return
        waiting.append(_Subscription(event.peer.connection, uid, pattern))
        if user not in self._tasks:
            self._tasks[user] = asyncio.ensure_future(self._serve_user(bus, user))

    async def _serve_user(self, bus: ServingBus, user: int) -> None:
        """Serve the subscriptions of one user, one after another."""
        try:
            while waiting := self._users.get(user):
                subscription = waiting.pop(0)
                self._serving.add(subscription)
                try:
                    await self._serve(bus, subscription)
                except (EngineError, CallError, ProtocolError) as error:
                    self._counts["undelivered"] += 1
                    self._report(f"a subscription got no last values: {error}")
                finally:
                    self._serving.discard(subscription)
        except (SbusError, OSError):
            pass  # the connection has ended, which its other users report
        finally:
            self._users.pop(user, None)
            self._tasks.pop(user, None)

    async def _serve(self, bus: ServingBus, subscription: _Subscription) -> None:
        """Send the last values for one subscription. Raises EngineError, CallError, SbusError, OSError."""
        await self._send_all(bus, subscription, subscription.pattern)
        for _ in range(MAX_ROUNDS):
            # What was published before the last value that was sent is committed then.
            await bus.ping()
            await self._settled()
            keys, subscription.changed = subscription.changed, set()
            if subscription.overflowed:
                subscription.overflowed = False
                await self._send_all(bus, subscription, subscription.pattern)
            elif not keys:
                return
            for key in keys:
                if not await self._send_all(bus, subscription, key):
                    await bus.send_later(direct_packet(subscription.connection, publish_packet(key)))  # it has no value any more
        self._counts["undelivered"] += 1

    async def _send_all(self, bus: ServingBus, subscription: _Subscription, pattern: bytes) -> int:
        """Send the last values that *pattern* matches, and return their number."""
        count = 0
        for stream in self._context.routes.with_last_values(pattern):
            if not stream.on_subscribe:
                continue
            after: bytes | None = None
            while True:
                read = partial(_last, stream.name, pattern, after)
                page = await self._context.operations.run(subscription.uid, read, SCAN_WEIGHT)
                for stored in page.items:
                    await self._send(bus, subscription.connection, stored)
                count += len(page.items)
                if page.next_key is None:
                    break
                after = page.next_key
        return count

    async def _send(self, bus: ServingBus, connection: int, stored: Stored) -> None:
        """Send one value as its publisher's."""
        packet = passed_on(stored.sender, stored.key, stored.payload)
        if not packet:
            self._counts["undelivered"] += 1
            return
        await bus.send_later(direct_packet(connection, packet))
        self._counts["delivered"] += 1


def _last(stream: str, pattern: bytes, after: bytes | None, engine: Engine) -> LastValues:
    """Return a page of last values."""
    return engine.last(stream, pattern, after, MAX_MESSAGES, RESPONSE_BYTES)
