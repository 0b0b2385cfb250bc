"""Renews the leases of jobs of an ``AsyncBus`` while their blocks run, in tasks of its loop. A block must not stop the loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sbus.store.requests import RENEWALS

Renew = Callable[[], Awaitable[bool]]
"""Renews the lease of one job; returns whether it can be renewed again."""


class AsyncLeaseRenewal:
    """The jobs of one store whose leases are renewed: each when a third of its lease has passed."""

    def __init__(self) -> None:
        self._timers: dict[Renew, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, renew: Renew, lease_seconds: float) -> None:
        """Call *renew* each time when a third of *lease_seconds* has passed."""
        self.remove(renew)
        self._begin(renew, lease_seconds / RENEWALS)

    def remove(self, renew: Renew) -> None:
        """Do not call *renew* any more. Harmless if it is not called."""
        if (timer := self._timers.pop(renew, None)) is not None:
            timer.cancel()

    def _begin(self, renew: Renew, interval: float) -> None:
        """Call *renew* after *interval* seconds."""
        self._timers[renew] = asyncio.get_running_loop().call_later(interval, self._start, renew, interval)

    def _start(self, renew: Renew, interval: float) -> None:
        """Start a task that calls *renew*."""
        task = asyncio.ensure_future(self._renew(renew, interval))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, renew: Renew, interval: float) -> None:
        """Renew one lease, and again later if it can be."""
        if await renew() and renew in self._timers:
            self._begin(renew, interval)
