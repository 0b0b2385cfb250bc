"""Renews the leases of jobs of a ``Bus`` while their blocks run: one daemon thread for all of them. See ``asyncio.lease_renewal``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from sbus.store.requests import RENEWALS

Renew = Callable[[], bool]
"""Renews the lease of one job; returns whether it can be renewed again."""

LINGER_SECONDS = 5.0
"""How long the thread stays without a job, so that a loop with short jobs does not start one for each."""


class LeaseRenewal:
    """The jobs of one store whose leases are renewed: each when a third of its lease has passed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[Renew, tuple[float, float]] = {}
        self._thread: threading.Thread | None = None
        self._wakes = 0.0
        self._process = os.getpid()

    def add(self, renew: Renew, lease_seconds: float) -> None:
        """Call *renew* each time when a third of *lease_seconds* has passed."""
        interval = lease_seconds / RENEWALS
        with self._changed:
            if self._process != os.getpid():  # the thread stayed with the parent process
                self._process, self._thread = os.getpid(), None
                self._due.clear()
            due = time.monotonic() + interval
            self._due[renew] = (due, interval)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sbus-leases", daemon=True)
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()

    def remove(self, renew: Renew) -> None:
        """Do not call *renew* any more. Harmless if it is not called."""
        with self._changed:
            self._due.pop(renew, None)

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
                due_now = [renew for renew, (due, _) in self._due.items() if due <= now]
            for renew in due_now:
                self._renew(renew)

    def _renew(self, renew: Renew) -> None:
        """Renew one lease, and again later if it can be."""
        goes_on = renew()
        with self._changed:
            if not goes_on:
                self._due.pop(renew, None)
            elif renew in self._due:
                interval = self._due[renew][1]
                self._due[renew] = (time.monotonic() + interval, interval)
