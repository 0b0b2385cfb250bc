"""Renews the leases of jobs of an ``AsyncBus`` while their blocks run, in tasks of its loop. A block must not stop the loop for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sbusd.client.errors import Closed, Disconnected, SbusError
from sbusd.client.store.requests import RENEWALS

if TYPE_CHECKING:
    from sbusd.client.asyncio.store import AsyncJob


class AsyncLeaseRenewal:
    """The jobs of one store whose leases are renewed: each when a third of its lease has passed."""

    def __init__(self) -> None:
        self._timers: dict[AsyncJob, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, job: AsyncJob, lease_seconds: float) -> None:
        """Renew the lease of *job* from now on."""
        self.remove(job)
        self._begin(job, lease_seconds / RENEWALS)

    def remove(self, job: AsyncJob) -> None:
        """Do not renew it any more. Harmless if it is not renewed."""
        if (timer := self._timers.pop(job, None)) is not None:
            timer.cancel()

    def _begin(self, job: AsyncJob, interval: float) -> None:
        """Renew the lease of *job* after *interval* seconds."""
        self._timers[job] = asyncio.get_running_loop().call_later(interval, self._start, job, interval)

    def _start(self, job: AsyncJob, interval: float) -> None:
        """Start a task that renews the lease."""
        task = asyncio.ensure_future(self._renew(job, interval))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, job: AsyncJob, interval: float) -> None:
        """Renew one lease. It is not renewed again if it is lost, or the connection has ended."""
        try:
            await job.extend()
        except (Closed, Disconnected):
            return
        except SbusError:
            if job.is_lost:
                return
        if job in self._timers:
            self._begin(job, interval)
