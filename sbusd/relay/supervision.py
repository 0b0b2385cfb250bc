"""What the relay tells the service manager: that it is ready, and that it lives. Spec: sd_notify(3)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from systemd import daemon

from sbusd.systemd.notify import Notify, ServiceManager


class Supervision:
    """Tells the service manager, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ, notify: Notify = daemon.notify) -> None:
        """*notify* sends one datagram of sd_notify(3)."""
        self._manager = ServiceManager(environment, notify)

    def ready(self, listen: str) -> None:
        """Tell that other hosts are heard at *listen*."""
        self._manager.tell(f"READY=1\nSTATUS=listening on {listen}")

    def alive(self) -> None:
        """Tell that the loop turns."""
        self._manager.tell("WATCHDOG=1")

    def stopping(self) -> None:
        """Tell that it ends."""
        self._manager.tell("STOPPING=1")
