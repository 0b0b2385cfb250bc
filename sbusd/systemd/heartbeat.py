"""Watchdog and status notifications of the bus to its service manager. Spec: sbusd(8).

The loop sends them itself, between two turns, never a thread: a loop that hangs sends none, and the watchdog restarts it.

An idle bus wakes up only every half watchdog interval. The status of a busy bus is sent once more after it has become idle, so it
wakes up twice more, :data:`STATUS_SECONDS` apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from sbusd.systemd.service_manager import ServiceManager

STATUS_SECONDS = 5.0
"""The shortest interval between two changes of the status: readable for people, and no load for systemd."""

RETRY_SECONDS = 0.1
"""Interval after which a notification that found no room is sent again; short compared with any useful watchdog."""


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
