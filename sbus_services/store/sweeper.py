"""What happens by itself: delays and leases that end, messages that expire, and the publication of dead letters and of ended values."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sbus_services.store.calls.responses import CallError
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.checksums import DAMAGED
from sbus_services.store.engine.continuity import LOST
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import DeadLetter, EngineError, NewMessage, Places, Sweep, Taken
from sbus_services.store.operation_queue import SERVICE
from sbus_services.store.publications import StorePublisher

MAX_ROWS = 1_000
"""Rows that one sweep changes: other operations take turns with it."""

MAX_SECONDS = 1.0
"""Longest time between two sweeps."""

FULL_SECONDS = 0.1
"""Time after which it is tried again to publish, if the bus had no room."""


class Sweeper:
    """Use :meth:`run`. *dead* publishes dead letters and is not the connection that receives messages: a stream may store them.

    *log_dead* gets each new dead letter once, *report* lines for the log.
    """

    def __init__(self, dead: StorePublisher, log_dead: Callable[[DeadLetter], None], report: Callable[[str], None]) -> None:
        self._dead = dead
        self._log_dead = log_dead
        self._report = report
        self._wake = asyncio.Event()
        self._next_ms = 0
        self._places = Places()
        """Up to which the notes are published by this connection, or were read without one."""
        self._logged = 0
        self._is_blocked = False

    def connected(self) -> None:
        """Publish all that is noted: what an earlier connection or run has perhaps not published."""
        self._places = Places()
        self.schedule(0)

    def schedule(self, at_ms: int) -> None:
        """Sweep at that time in milliseconds, or earlier; 0 for at once."""
        if at_ms < self._next_ms:
            self._next_ms = at_ms
            self._wake.set()

    async def run(self, context: StoreContext) -> None:
        """Sweep until cancelled."""
        while True:
            now = context.clock.now()
            self._next_ms = now + round(MAX_SECONDS * 1000)
            self._wake.clear()
            taken, places = context.published.new(), self._places
            try:
                sweep = await context.operations.run(
                    SERVICE, partial(_sweep, taken, places), committed=partial(self._done, context, taken, places)
                )
            except (EngineError, CallError) as error:
                if not context.is_stopping:
                    self._report(f"cannot sweep: {error}")
                await asyncio.sleep(MAX_SECONDS)
                continue
            if self._is_blocked:
                self._next_ms = min(self._next_ms, context.clock.now() + round(FULL_SECONDS * 1000))
            elif sweep.more:
                continue
            elif sweep.next_ms:
                self._next_ms = min(self._next_ms, sweep.next_ms)
            await self._pause(context)

    async def _pause(self, context: StoreContext) -> None:
        """Return when the next sweep is due."""
        while (left := self._next_ms - context.clock.now()) > 0:
            self._wake.clear()
            try:
                async with asyncio.timeout(left / 1000):
                    await self._wake.wait()
            except TimeoutError:
                return

    def _done(self, context: StoreContext, taken: Taken, places: Places, sweep: Sweep) -> None:
        """Note what a sweep has done."""
        context.published.noted(taken)
        context.counts["removed"] += sweep.removed
        for connection, lease in sweep.ended:
            context.on_settled(connection, [lease])
        for queue in sweep.ready:
            context.jobs_ready(queue)
        for stream, seq in sweep.damaged:
            self._report(f"a stored message is damaged on the disk: number {seq} of stream {stream}")
        for stream, seq in sweep.lost.items():
            self._report(f"stream {stream} has lost messages: {LOST}; it continues after a gap, number {seq}")
        for letter in sweep.dead:
            if letter.place > self._logged:
                self._logged = letter.place
                context.counts["dead"] += 1
                self._log_dead(letter)
        self._is_blocked = False
        if places is self._places:  # otherwise there is a new connection, and all is read again
            self._publish(context, sweep)

    def _publish(self, context: StoreContext, sweep: Sweep) -> None:
        """Publish ended values and dead letters, as far as the bus has room. Without a connection they stay noted for the next one."""
        ends, letters = sweep.places.ends, sweep.places.letters
        if not self._dead.is_connected:
            self._places = Places(ends, letters)
            return
        never = 0
        for value in sweep.values:
            done, lost = context.value_ended(value.stream, value.message)
            never += lost
            if not done:
                ends, self._is_blocked = value.place - 1, True
                break
        for letter in sweep.dead:
            settings = context.routes.settings.queue(letter.queue)
            if settings is None or not settings.dead or letter.reason == DAMAGED:
                continue
            done, lost = self._dead.publish_many([NewMessage(settings.dead.encode() + letter.key, letter.payload, letter.sender)])
            never += lost
            if not done:
                letters, self._is_blocked = letter.place - 1, True
                break
        if (ends, letters) != (self._places.ends, self._places.letters):
            self._places = Places(ends, letters)
            noted = partial(context.published.announced, self._places, never)
            context.publisher.when_taken(partial(self._dead.when_taken, noted))  # by both connections


def _sweep(taken: Taken, places: Places, engine: Engine) -> Sweep:
    """Sweep once, and note what the bus has taken."""
    engine.note_taken(taken)
    return engine.sweep(MAX_ROWS, places)
