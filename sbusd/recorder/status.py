"""Watchdog and status notifications of the recorder to its service manager. Spec: sd_notify(3)."""

from __future__ import annotations

import time
from collections.abc import Callable

from sbusd.systemd.service_manager import ServiceManager

STATUS_SECONDS = 5.0
"""The shortest interval between two notifications of a changed status."""


class StatusReporter:
    """Reports the status to *manager*.

    Call :meth:`turn` in each turn of the loop, never from a thread: the watchdog must notice a loop that hangs.
    """

    def __init__(self, manager: ServiceManager, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds, for tests."""
        self._manager = manager
        self._clock = clock
        self._interval = manager.watchdog_seconds / 2
        self._notified_at = clock()
        self._status_at = 0.0
        self._status = ""

    @property
    def due(self) -> float | None:
        """The latest time for the next :meth:`turn`, by the clock, or None without a watchdog."""
        return self._notified_at + self._interval if self._interval else None

    def turn(self, status: Callable[[], str]) -> None:
        """Notify the watchdog if it is time, and report *status* if it has changed."""
        if not self._manager.is_there:
            return
        now = self._clock()
        if self._interval and now >= self._notified_at + self._interval:
            self._notified_at = now
            self._manager.alive()
        if now >= self._status_at:
            self._status_at = now + STATUS_SECONDS
            if (text := status()) != self._status:
                self._status = text
                self._manager.notify(f"STATUS={text}")
