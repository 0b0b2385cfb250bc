"""Renews the leases of jobs of a ``Bus`` while their blocks run: one daemon thread for all of them. See ``asyncio.lease_renewal``."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from sbusd.client.errors import Closed, Disconnected, SbusError
from sbusd.client.store.requests import RENEWALS

if TYPE_CHECKING:
    from sbusd.client.sync.store import Job

LINGER_SECONDS = 5.0
"""How long the thread stays without a job, so that a loop with short jobs does not start one for each."""


class LeaseRenewal:
    """The jobs of one store whose leases are renewed: each when a third of its lease has passed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Job, tuple[float, float]] = {}
        self._thread: threading.Thread | None = None
        self._wakes = 0.0
        self._process = os.getpid()

    def add(self, job: Job, lease_seconds: float) -> None:
        """Renew the lease of *job* from now on."""
        interval = lease_seconds / RENEWALS
        with self._changed:
            if self._process != os.getpid():  # the thread stayed with the parent process
                self._process, self._thread = os.getpid(), None
                self._due.clear()
            due = time.monotonic() + interval
            self._due[job] = (due, interval)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sbus-leases", daemon=True)
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()

    def remove(self, job: Job) -> None:
        """Do not renew it any more. Harmless if it is not renewed."""
        with self._changed:
            self._due.pop(job, None)

    def _run(self) -> None:
        """Renew each lease when it is due. Ends when the jobs have been settled for a while."""
        idle_until = 0.0
        while True:
            with self._changed:
                now = time.monotonic()
                if self._due:
                    idle_until = now + LINGER_SECONDS
                elif now >= idle_until:
                    self._thread = None
                    return
                self._wakes = min((due for due, _ in self._due.values()), default=idle_until)
                if self._wakes > now:
                    self._changed.wait(self._wakes - now)
                    continue
                jobs = [job for job, (due, _) in self._due.items() if due <= now]
            for job in jobs:
                self._renew(job)

    def _renew(self, job: Job) -> None:
        """Renew one lease. It is not renewed again if it is lost, or the connection has ended."""
        is_over = False
        try:
            job.extend()
        except (Closed, Disconnected):
            is_over = True
        except SbusError:
            is_over = job.is_lost
        with self._changed:
            if is_over:
                self._due.pop(job, None)
            elif job in self._due:
                interval = self._due[job][1]
                self._due[job] = (time.monotonic() + interval, interval)
