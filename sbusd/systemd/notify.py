"""The service manager as a service tells it how it goes. Spec: sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from systemd import daemon

Notify = Callable[[str], object]


class ServiceManager:
    """Who started the service, if that wants to be told."""

    def __init__(self, environment: Mapping[str, str] = os.environ, notify: Notify = daemon.notify) -> None:
        """*notify* sends one datagram of sd_notify(3)."""
        self._notify = notify
        self.is_there = bool(environment.get("NOTIFY_SOCKET"))
        self.watchdog_seconds = _watchdog_seconds(environment)
        """How often a sign of life is asked for, 0 if none is."""

    def tell(self, state: str) -> None:
        """Send *state*; that nobody takes it must not end the service."""
        if self.is_there:
            with contextlib.suppress(OSError):
                self._notify(state)


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    """Return how often a sign of life is asked of this process."""
    usec, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(usec) / 1e6
