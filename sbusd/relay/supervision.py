"""The service manager: told when the relay is ready, and that it lives. Spec: sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from systemd import daemon

Notify = Callable[[str], object]


class Supervision:
    """Tells the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ, notify: Notify = daemon.notify) -> None:
        """*notify* sends one datagram of sd_notify(3)."""
        self._notify = notify
        self._has_manager = bool(environment.get("NOTIFY_SOCKET"))

    def ready(self, listen: str) -> None:
        """Tell that other hosts are heard at *listen*."""
        self._tell(f"READY=1\nSTATUS=other hosts at {listen}")

    def alive(self) -> None:
        """Tell that the loop turns."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Tell that it ends."""
        self._tell("STOPPING=1")

    def _tell(self, state: str) -> None:
        """Send *state*; that nobody takes it must not end the relaying."""
        if self._has_manager:
            with contextlib.suppress(OSError):
                self._notify(state)
