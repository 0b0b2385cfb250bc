"""The service manager: told when the recorder is ready, how it goes, and that it lives. Spec: sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

from systemd import daemon

STATUS_SECONDS = 5.0
"""How often the status is told, if something has changed."""

EXTEND_SECONDS = 30
"""How much longer a start may take from one sign of life to the next, sd_notify(3) EXTEND_TIMEOUT_USEC."""

Notify = Callable[[str], object]


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
        self._notify = notify
        self._clock = clock
        self._has_manager = bool(environment.get("NOTIFY_SOCKET"))
        self._interval = _watchdog_seconds(environment) / 2
        self._alive_at = clock()
        self._status_at = 0.0
        self._status = ""

    @property
    def due(self) -> float | None:
        """When :meth:`turn` is to be called at the latest, by the clock; None: whenever."""
        return self._alive_at + self._interval if self._interval else None

    def ready(self) -> None:
        """Tell that the recorder listens."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Tell that it ends, and may take a little."""
        self._tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")

    def extend(self) -> None:
        """Ask for more time to start."""
        self._tell(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")

    def turn(self, status: Callable[[], str]) -> None:
        """Tell that the loop turns, if it is time, and *status*, if that has changed."""
        if not self._has_manager:
            return
        now = self._clock()
        if self._interval and now >= self._alive_at + self._interval:
            self._alive_at = now
            self._tell("WATCHDOG=1")
        if now >= self._status_at:
            self._status_at = now + STATUS_SECONDS
            if (words := status()) != self._status:
                self._status = words
                self._tell(f"STATUS={words}")

    def _tell(self, state: str) -> None:
        """Send *state*; that nobody takes it must not end the recording."""
        if self._has_manager:
            with contextlib.suppress(OSError):
                self._notify(state)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return how often a sign of life is asked for, 0 if none is."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(usec) / 1e6
