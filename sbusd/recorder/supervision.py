"""What the recorder tells the service manager: that it is ready, how it goes, and that it lives. Spec: sd_notify(3)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from systemd import daemon

from sbusd.systemd.notify import Notify, ServiceManager

STATUS_SECONDS = 5.0
"""How often the status is told, if something has changed."""

EXTEND_SECONDS = 30
"""How much longer a start may take from one sign of life to the next, sd_notify(3) EXTEND_TIMEOUT_USEC."""


class Supervision:
    """Tells the service manager, if there is one. Call :meth:`turn` in every round of the loop, and not from a thread: a loop that hangs
    must be missed."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        notify: Notify = daemon.notify,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """*notify* sends one datagram of sd_notify(3)."""
        self._manager = ServiceManager(environment, notify)
        self._clock = clock
        self._interval = self._manager.watchdog_seconds / 2
        self._alive_at = clock()
        self._status_at = 0.0
        self._status = ""

    @property
    def due(self) -> float | None:
        """When :meth:`turn` is to be called at the latest, by the clock; None: whenever."""
        return self._alive_at + self._interval if self._interval else None

    def ready(self) -> None:
        """Tell that the recorder listens."""
        self._manager.tell("READY=1")

    def stopping(self) -> None:
        """Tell that it ends, and may take a little."""
        self._manager.tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")

    def extend(self) -> None:
        """Ask for more time to start."""
        self._manager.tell(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")

    def turn(self, status: Callable[[], str]) -> None:
        """Tell that the loop turns, if it is time, and *status*, if that has changed."""
        if not self._manager.is_there:
            return
        now = self._clock()
        if self._interval and now >= self._alive_at + self._interval:
            self._alive_at = now
            self._manager.tell("WATCHDOG=1")
        if now >= self._status_at:
            self._status_at = now + STATUS_SECONDS
            if (words := status()) != self._status:
                self._status = words
                self._manager.tell(f"STATUS={words}")
