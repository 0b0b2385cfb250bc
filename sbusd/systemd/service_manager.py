"""What the service manager is told of the bus, if one wants to be told. Spec: sbusd(8); sd_notify(3), sd_watchdog_enabled(3).

What happens once (ready, reloading, stopping) is told until it is taken. What is told again and again goes through a socket that
never waits: everybody can write to systemd's, and a bus that waited for room in it would be held up by any user.
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

PROLONG_SECONDS = 30.0
"""How long a start or an end may take from each :meth:`ServiceManager.prolong` on, whatever the unit allows: the slowest step's time."""

PROLONG_PACE_SECONDS = 1.0
"""How often that is told at most."""


class ServiceManagerError(SbusError, OSError):
    """The service manager cannot be told, or its environment is wrong; its text is one line. The program exits with status 1."""


class ServiceManager:
    """The service manager of this process, or none: then telling does nothing. Call :meth:`close` at the end."""

    def __init__(self, address: str, watchdog_seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Talk to *address*, empty for none; *watchdog_seconds* is 0 without a watchdog; *clock* counts seconds, and is for tests."""
        self.watchdog_seconds = watchdog_seconds if address else 0.0
        """How long the bus may be silent before it is killed; 0 for ever."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._clock = clock
        self._prolonged = float("-inf")
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> ServiceManager:
        """Return the service manager that *environment* tells of; one whose watchdog is another process's has none here.

        Raises:
            ServiceManagerError: what it says of the watchdog is no number.
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
        """Whether there is anybody to tell."""
        return self._socket is not None

    def ready(self, status: str) -> None:
        """Tell that the bus can be used; *status* is for people.

        Raises:
            ServiceManagerError: it cannot be told.
        """
        self._tell(f"READY=1\nSTATUS={printable(status)}")

    def reloading(self) -> None:
        """Tell that the configuration is read again; :meth:`reloaded` must follow. Never raises, as that does not."""
        self._try_to_tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """Tell that what :meth:`reloading` told of is done."""
        self._try_to_tell("READY=1")

    def stopping(self) -> None:
        """Tell that the bus is about to end, and that it may take a while. Never raises: systemd will see the end itself."""
        self._try_to_tell(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={PROLONG_SECONDS * 1e6:.0f}")

    def prolong(self) -> None:
        """Tell that a long start or end goes on: call it with each step; most calls do nothing."""
        now = self._clock()
        if now - self._prolonged >= PROLONG_PACE_SECONDS:
            self._prolonged = now
            self.offer(f"EXTEND_TIMEOUT_USEC={PROLONG_SECONDS * 1e6:.0f}\nWATCHDOG=1")

    def offer(self, state: str) -> bool:
        """Tell *state* if that takes no waiting, and return whether it did; True if there is nobody to tell."""
        if self._socket is None:
            return True
        try:
            # Not connected: what was there at the start may have been replaced since.
            self._socket.sendto(state.encode(), self._address)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let go of the socket; there is nobody to tell any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _try_to_tell(self, state: str) -> None:
        """Tell *state*; a bus that serves does not end because somebody did not want to know."""
        with contextlib.suppress(ServiceManagerError):
            self._tell(state)

    def _tell(self, state: str) -> None:
        """Tell *state*, and wait until it is taken. Raises ServiceManagerError."""
        if self._socket is None:
            return
        try:
            daemon.notify(state)
        except OSError as error:
            raise ServiceManagerError(
                f"cannot notify systemd through $NOTIFY_SOCKET: {error.strerror}; unset it if systemd does not run this bus"
            ) from None
