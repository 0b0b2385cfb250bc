"""What happens by itself: delays and leases that end, messages that expire, dead letters that are published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from sbusd.store.calls.call_errors import CallError
from sbusd.store.context import StoreContext
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import DeadLetter, StoreError, Sweep
from sbusd.store.operation_queue import SERVICE

MAX_ROWS = 1_000
"""Rows that one sweep changes: other operations take turns with it."""

MAX_SECONDS = 1.0
"""Longest time between two sweeps."""


class Sweeper:
    """Use :meth:`run`. *dead* gets the new dead letters; *report* gets lines for the log."""

    def __init__(self, dead: Callable[[Sequence[DeadLetter]], None], report: Callable[[str], None]) -> None:
        self._dead = dead
        self._report = report
        self._wake = asyncio.Event()
        self._next_ms = 0

    def poke(self, at_ms: int) -> None:
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
            published = context.published.new()
            try:
                sweep = await context.operations.run(SERVICE, partial(_sweep, published), committed=partial(self._done, context, published))
            except (StoreError, CallError) as error:
                if not context.is_stopping:
                    self._report(f"cannot sweep: {error}")
                await asyncio.sleep(MAX_SECONDS)
                continue
            if sweep.more:
                continue
            if sweep.next_ms:
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

    def _done(self, context: StoreContext, published: Mapping[str, int], sweep: Sweep) -> None:
        """Note what a sweep has done."""
        context.published.noted(published)
        context.counts["removed"] += sweep.removed
        for connection, lease in sweep.ended:
            context.on_settled(connection, [lease])
        for queue in sweep.ready:
            context.jobs_ready(queue)
        for stream, message in sweep.values:
            context.value_ended(stream, message)
        if sweep.dead:
            self._dead(sweep.dead)


def _sweep(published: Mapping[str, int], engine: Engine) -> Sweep:
    """Sweep once, and note what was published."""
    engine.note_published(published)
    return engine.sweep(MAX_ROWS)
