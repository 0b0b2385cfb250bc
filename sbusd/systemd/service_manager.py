"""Notifications to the service manager. Spec: sbusd(8); sd_notify(3), sd_watchdog_enabled(3).

Single events (ready, reloading, stopping) wait until the service manager takes them. Repeated notifications use a socket that never
blocks: every user can fill systemd's queue, and a bus that waited for room in it could be stopped by any user.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

from systemd import daemon

from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

EXTEND_SECONDS = 30.0
"""How long a start or stop may take after each :meth:`ServiceManager.extend_timeout`, whatever the unit allows: its slowest step."""

EXTEND_INTERVAL_SECONDS = 1.0
"""The shortest interval between two such notifications."""


class ServiceManagerError(SbusError, OSError):
    """The service manager cannot be notified, or its environment is wrong; the text is one line. The program exits with status 1."""


class ServiceManager:
    """The service manager of this process, or none: then notifications have no effect. Call :meth:`close` at the end."""

    def __init__(self, address: str = "", watchdog_seconds: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Notify *address*, empty for none; *watchdog_seconds* is 0 without a watchdog; *clock* counts seconds, for tests."""
        self.watchdog_seconds = watchdog_seconds if address else 0.0
        """Seconds without a watchdog notification after which the process is killed; 0 without a watchdog."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._clock = clock
        self._extended = float("-inf")
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> ServiceManager:
        """Return the service manager of *environment*. The watchdog of another process is ignored.

        Raises:
            ServiceManagerError: $WATCHDOG_USEC or $WATCHDOG_PID is not a number.
        """
        address = environment.get("NOTIFY_SOCKET", "")
        usec, pid = environment.get("WATCHDOG_USEC", "0"), environment.get("WATCHDOG_PID", "")
        for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid or "0")):
            if not (value.isascii() and value.isdigit()):
                raise ServiceManagerError(f"invalid ${name} {printable(value)!r}: must be a number; only systemd may set it")
        watches = not pid or int(pid) == os.getpid()
        return cls(address, int(usec) / 1e6 if watches else 0.0)

    @property
    def is_there(self) -> bool:
        """Whether a service manager wants notifications."""
        return self._socket is not None

    def ready(self, status: str) -> None:
        """Notify that the service is ready, with *status* for people. Waits until it is taken.

        Raises:
            ServiceManagerError: the notification cannot be sent.
        """
        self._send(f"READY=1\nSTATUS={printable(status)}")

    def reloading(self) -> None:
        """Notify that a reload began; :meth:`reloaded` must follow. Never raises."""
        self.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Notify that the reload is complete. Never raises."""
        self.notify("READY=1")

    def stopping(self) -> None:
        """Notify that the service stops, which may take a while. Never raises: systemd sees the end of the process anyway."""
        self.notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1e6:.0f}")

    def extend_timeout(self) -> None:
        """Notify that a long start or stop makes progress. Call it in each step; most calls do nothing."""
        now = self._clock()
        if now - self._extended >= EXTEND_INTERVAL_SECONDS:
            self._extended = now
            self.offer(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1e6:.0f}\nWATCHDOG=1")

    def offer(self, state: str) -> bool:
        """Send *state* without waiting, and return whether it was sent; True without a service manager."""
        if self._socket is None:
            return True
        try:
            # The socket is not connected: systemd may have replaced the one that was there at the start.
            self._socket.sendto(state.encode(), self._address)
        except OSError:
            return False
        return True

    def notify(self, state: str) -> None:
        """Send *state*, and wait until it is taken. Never raises: a service does not end because of a lost notification."""
        with contextlib.suppress(ServiceManagerError):
            self._send(state)

    def close(self) -> None:
        """Close the socket. Later notifications have no effect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, state: str) -> None:
        """Send *state*, and wait until it is taken. Raises ServiceManagerError."""
        if self._socket is None:
            return
        try:
            daemon.notify(state)
        except OSError as error:
            raise ServiceManagerError(
                f"cannot notify systemd through $NOTIFY_SOCKET: {error.strerror}; unset it if systemd does not run this bus"
            ) from None
