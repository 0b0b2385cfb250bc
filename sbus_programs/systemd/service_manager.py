"""Notifications to the service manager, and its file descriptor store. Spec: sbusd(8); sd_notify(3), sd_watchdog_enabled(3).

Every user can fill systemd's queue, and a program that waited for room in it without a limit could be stopped by any user. So single
events (reloading, stopping) wait for a few seconds, and repeated notifications never. A start waits longer, and then fails.

:class:`Heartbeat` has the watchdog and status notifications of the bus. The loop sends them itself, between two turns, never a thread: a
loop that hangs sends none, and the watchdog restarts it. An idle bus wakes up only every half watchdog interval. The status of a busy bus
is sent once more after it has become idle, so it wakes up twice more, :data:`STATUS_SECONDS` apart.

systemd empties its file descriptor store when the service is stopped or has finally failed, but not on a restart. The bus does not need to
know which.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import struct
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import NamedTuple

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable

EXTEND_SECONDS = 30.0
"""How long a start or stop may take after each :meth:`ServiceManager.extend_timeout`, whatever the unit allows: its slowest step."""

NOTIFY_SECONDS = 5
"""How long a single event waits for room in the queue of the service manager; whole seconds."""

START_SECONDS = 30.0
"""How long a start waits for that."""

EXTEND_INTERVAL_SECONDS = 1.0
"""The shortest interval between two such notifications."""

STATUS_SECONDS = 5.0
"""The shortest interval between two changes of the status: readable for people, and no load for systemd."""

RETRY_SECONDS = 0.1
"""Interval after which a notification that found no room is sent again; short compared with any useful watchdog."""


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
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", NOTIFY_SECONDS, 0))

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
        """Notify that the service is ready, and the watchdog, with *status* for people. Waits for START_SECONDS at most.

        A restart in place ends with this too, and begins the interval of the watchdog again in this process, but not in systemd.

        Raises:
            ServiceManagerError: the notification cannot be sent.
        """
        try:
            self.deliver(f"READY=1\nWATCHDOG=1\nSTATUS={printable(status)}")
        except OSError as error:
            raise ServiceManagerError(
                f"cannot notify systemd through $NOTIFY_SOCKET: {error.strerror}; unset it if systemd does not run this bus"
            ) from None

    def reloading(self) -> bool:
        """Notify that a reload began; :meth:`reloaded` must follow. Returns whether it was sent, as :meth:`notify`."""
        return self.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> bool:
        """Notify that the reload is complete. Returns whether it was sent, as :meth:`notify`."""
        return self.notify("READY=1")

    def stopping(self) -> bool:
        """Notify that the service stops, which may take a while. Returns whether it was sent, as :meth:`notify`."""
        return self.notify(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1e6:.0f}")

    def extend_timeout(self) -> None:
        """Notify that a long start or stop makes progress. Call it in each step; most calls do nothing."""
        now = self._clock()
        if now - self._extended >= EXTEND_INTERVAL_SECONDS:
            self._extended = now
            self.offer(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1e6:.0f}\nWATCHDOG=1")

    def offer(self, state: str) -> bool:
        """Send *state* without waiting, and return whether it was sent; True without a service manager."""
        return self._send(state, socket.MSG_DONTWAIT)

    def alive(self, status: str = "") -> None:
        """Notify the watchdog, with *status* for people unless it is empty, as :meth:`notify`."""
        self.notify(f"WATCHDOG=1\nSTATUS={printable(status)}" if status else "WATCHDOG=1")

    def notify(self, state: str) -> bool:
        """Send *state*; wait for room for NOTIFY_SECONDS at most. Return whether it was sent; True without a service manager.

        Never raises: a service does not end because of a lost notification, nor does it live longer.
        """
        return self._send(state, 0)

    def close(self) -> None:
        """Close the socket. Later notifications have no effect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def deliver(self, state: str, *fds: int, until: float | None = None) -> None:
        """Send *state* with *fds*, and wait for room, *until* a time of the clock: by default for START_SECONDS. Raises OSError."""
        until = self._clock() + START_SECONDS if until is None else until
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        while self._socket is not None:
            try:
                self._socket.sendmsg([state.encode()], passed, 0, self._address)
            except BlockingIOError:
                if self._clock() >= until:
                    raise TimeoutError(errno.ETIMEDOUT, "its queue is full") from None
            else:
                return

    def _send(self, state: str, flags: int) -> bool:
        """Send *state* with the *flags* of send(2), and return whether that worked."""
        if self._socket is None:
            return True
        try:
            # The socket is not connected: systemd may have replaced the one that was there at the start.
            self._socket.sendto(state.encode(), flags, self._address)
        except OSError:
            return False
        return True


class StatusReporter:
    """Reports the status of a service with a loop of its own to *manager*.

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


class Traffic(NamedTuple):
    """The numbers in the status."""

    clients: int
    messages: int
    """Since the bus started."""


class Heartbeat:
    """The notifications of one loop. Call :meth:`beat` before each turn, and wait no longer in it than the returned time."""

    def __init__(
        self,
        manager: ServiceManager,
        measure: Callable[[], Traffic],
        failed: Callable[[], None],
        *,
        warning: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Notify *manager* of what *measure* returns; call *failed* for each notification that could not be sent.

        *warning* returns a short text that is added to the status, or an empty one.
        """
        self._manager = manager
        self._measure = measure
        self._failed = failed
        self._warning = warning
        self._clock = clock
        now = clock()
        self._watchdog_interval = manager.watchdog_seconds / 2 or math.inf
        self._watchdog_at = now + self._watchdog_interval
        self._status_at = now + STATUS_SECONDS
        self._due_at = min(self._watchdog_at, self._status_at)
        self._traffic = Traffic(0, 0)
        self._measured_at = now
        self._status = ""
        self.is_settled = False
        """Whether the status stays correct until something happens: the loop must then return as soon as anything does."""

    def beat(self) -> int:
        """Send the notifications that are due, and return the maximum time that the loop may wait, in ms; -1 means no maximum."""
        if not self._manager.is_there:
            return -1
        now = self._clock()
        if self.is_settled and now < self._due_at:
            # The turn ended early, so something has happened.
            self.is_settled = False
            self._due_at = min(self._watchdog_at, self._status_at)
        if now >= self._due_at:
            self._notify(now)
        return -1 if self._due_at == math.inf else math.ceil((self._due_at - now) * 1000)

    def _notify(self, now: float) -> None:
        """Send what is due, and compute the next due time."""
        is_watchdog, states = now >= self._watchdog_at, []
        if is_watchdog:
            states.append("WATCHDOG=1")
        status, traffic = self._status, self._traffic
        if is_status := now >= self._status_at:
            traffic = self._measure()
            status = _status(traffic, (traffic.messages - self._traffic.messages) / (now - self._measured_at), self._warning())
            if status != self._status:
                states.append(f"STATUS={status}")
        if states and not self._manager.offer("\n".join(states)):
            self._failed()
            self.is_settled = False
            self._due_at = now + RETRY_SECONDS
            return
        if is_watchdog:
            self._watchdog_at = now + self._watchdog_interval
        if is_status:
            # A rate is only correct while messages come; the bus reports a rate of 0 before it rests.
            self.is_settled = traffic.messages == self._traffic.messages
            self._traffic, self._measured_at, self._status = traffic, now, status
            self._status_at = now + STATUS_SECONDS
        self._due_at = self._watchdog_at if self.is_settled else min(self._watchdog_at, self._status_at)


def _status(traffic: Traffic, rate: float, warning: str) -> str:
    """Return the status for *traffic*, at *rate* messages per second, with the *warning*, if there is one."""
    return f"{_counted(traffic.clients, 'client')}, {_counted(round(rate), 'message')}/s{f'; {warning}' if warning else ''}"


def _counted(number: int, noun: str) -> str:
    """Return *number* with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


PAIRS = 2
"""Socket pairs of the connection store, two descriptors each."""

STATE = "sbus-state"
"""FDNAME of the state file."""

CONNECTION_STORE = tuple(f"sbus-connections-{number}" for number in range(2 * PAIRS))
"""FDNAMEs of the ends of the connection store. Never rename them: after an upgrade the new process finds what the old one stored."""

STORED_NAMES = frozenset({STATE, *CONNECTION_STORE})


class DescriptorStoreError(SbusError, OSError):
    """The service manager cannot be notified; the text is one line."""


def keeps_descriptors(environment: Mapping[str, str]) -> bool:
    """Return whether the service manager keeps stored descriptors after this process ends.

    Since systemd 254, $FDSTORE is the maximum number of descriptors. Older versions do not set it; then the bus assumes that there is
    a store. Without a store, systemd closes what it receives, which does no harm.
    """
    if not environment.get("NOTIFY_SOCKET"):
        return False
    return environment.get("FDSTORE", "") != "0"


def store_descriptors(state: int, connection_store: list[int]) -> None:
    """Store these descriptors, and remove what was stored under their names. Raises DescriptorStoreError."""
    until = time.monotonic() + START_SECONDS
    try:
        with closing(ServiceManager(os.environ["NOTIFY_SOCKET"])) as manager:
            for name, fd in zip((STATE, *CONNECTION_STORE), (state, *connection_store), strict=True):
                manager.deliver(f"FDSTOREREMOVE=1\nFDNAME={name}", until=until)
                manager.deliver(f"FDSTORE=1\nFDNAME={name}", fd, until=until)
    except OSError as error:
        raise DescriptorStoreError(f"cannot store descriptors through $NOTIFY_SOCKET: {error.strerror}") from None
