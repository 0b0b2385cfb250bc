"""The signs of life that the bus gives its service manager: that its loop turns, and how much goes through it. Spec: sbusd(8).

They come from the loop itself, between two turns, never from a thread: a loop that hangs gives none, and the watchdog ends it.

An idle bus is woken for half of the watchdog's time, and for nothing else. What it has done last is told once it has come to rest,
so a bus that was busy is woken twice more, :data:`STATUS_SECONDS` apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from sbusd.systemd.service_manager import ServiceManager

STATUS_SECONDS = 5.0
"""How often the status changes at most: as often as somebody who watches can read it, and nothing for systemd to do."""

RETRY_SECONDS = 0.1
"""How soon a sign of life is given again that found no room: often, within the shortest watchdog that makes sense."""


class Traffic(NamedTuple):
    """What the status tells about."""

    clients: int
    messages: int
    """Since the bus started."""


class Heartbeat:
    """The signs of life of one loop. Call :meth:`beat` before each turn, and wait no longer in it than that says."""

    def __init__(
        self,
        manager: ServiceManager,
        measure: Callable[[], Traffic],
        failed: Callable[[], None],
        *,
        warning: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tell *manager* what *measure* says; *failed* is called for each sign of life that it did not take.

        *warning* says in a few words what a person should see in the status besides, if anything.
        """
        self._manager = manager
        self._measure = measure
        self._failed = failed
        self._warning = warning
        self._clock = clock
        now = clock()
        self._alive_seconds = manager.watchdog_seconds / 2 or math.inf
        self._alive_at = now + self._alive_seconds
        self._status_at = now + STATUS_SECONDS
        self._due_at = min(self._alive_at, self._status_at)
        self._traffic = Traffic(0, 0)
        self._measured_at = now
        self._told = ""
        self.is_settled = False
        """Whether the status holds until something happens: the loop must then return as soon as anything does."""

    def beat(self) -> int:
        """Give the signs of life that are due, and return for how many ms the loop may wait at most; -1 is for ever."""
        if not self._manager.is_there:
            return -1
        now = self._clock()
        if self.is_settled and now < self._due_at:
            # Something has happened: a turn has ended before it had to.
            self.is_settled = False
            self._due_at = min(self._alive_at, self._status_at)
        if now >= self._due_at:
            self._give(now)
        return -1 if self._due_at == math.inf else math.ceil((self._due_at - now) * 1000)

    def _give(self, now: float) -> None:
        """Tell what is due, and say when the next is."""
        is_alive, states = now >= self._alive_at, []
        if is_alive:
            states.append("WATCHDOG=1")
        status, traffic = self._told, self._traffic
        if is_status := now >= self._status_at:
            traffic = self._measure()
            status = _status(traffic, (traffic.messages - self._traffic.messages) / (now - self._measured_at), self._warning())
            if status != self._told:
                states.append(f"STATUS={status}")
        if states and not self._manager.offer("\n".join(states)):
            self._failed()
            self.is_settled = False
            self._due_at = now + RETRY_SECONDS
            return
        if is_alive:
            self._alive_at = now + self._alive_seconds
        if is_status:
            # A rate holds only while messages come; that there are none is told before the bus may rest.
            self.is_settled = traffic.messages == self._traffic.messages
            self._traffic, self._measured_at, self._told = traffic, now, status
            self._status_at = now + STATUS_SECONDS
        self._due_at = self._alive_at if self.is_settled else min(self._alive_at, self._status_at)


def _status(traffic: Traffic, rate: float, warning: str) -> str:
    """Return the words for *traffic*, with so many messages a second, and for the *warning*, if there is one."""
    return f"{_counted(traffic.clients, 'client')}, {_counted(round(rate), 'message')}/s{f'; {warning}' if warning else ''}"


def _counted(number: int, noun: str) -> str:
    """Return the number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
