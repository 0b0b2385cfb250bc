"""What feeds of a state have in common: the loop, the snapshots that are wanted, and the answers to the bus. Spec: sbus-feed(8).

A feed listens to its source by a monitor. After lost messages it closes the monitor, and the next snapshot begins with another one.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from sbus_services.feeds.bus_publisher import BusActivity
from sbus_services.feeds.netlink.sockets import OverrunError
from sbus_services.feeds.netlink.stored_values import PublishedKeys
from sbus_services.feeds.rate_limit import RateLimit

_SNAPSHOT_SECONDS = 1.0


class EventPublisher(Protocol):
    """The part of the bus that a feed needs."""

    def fileno(self) -> int | None:
        """Return the descriptor to poll, None while the bus is unavailable."""

    def publish(self, key: str, payload: bytes) -> None:
        """Publish one message; block while the bus is unavailable."""

    def activity(self) -> BusActivity:
        """Return what was received since the last call; block only while the bus is unavailable."""


class SourceMonitor(Protocol):
    """Messages of the source from some time on."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def close(self) -> None:
        """Close it."""


class FeedCounters(Protocol):
    """The counters of every such feed."""

    overruns: int
    requests: int
    refused: int
    reconnects: int


C = TypeVar("C", bound=FeedCounters)
M = TypeVar("M", bound=SourceMonitor)


class SnapshotFeed(ABC, Generic[C, M]):
    """A feed of a state to a bus; the caller owns source and bus.

    *log* is called with lines for the administrator, *ready* with a status line after each snapshot; *clock* is monotonic, in seconds.
    *check_seconds* is the shortest interval between two checks of an uncertain state. *keys* are kept like the entries.
    """

    def __init__(
        self,
        counters: C,
        publisher: EventPublisher,
        log: Callable[[str], None],
        ready: Callable[[str], None],
        *,
        check_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        keys: PublishedKeys | None = None,
    ) -> None:
        self.counters = counters
        self._publisher = publisher
        self._log = log
        self._ready = ready
        self._clock = clock
        self._keys = keys or PublishedKeys()
        self._monitor: M | None = None
        self._signals: int | None = None
        self._generation = 0
        self._may_have_activity = False
        """Whether to read from the bus though polling shows nothing: publishing reads when it cannot write."""
        self._wanted: str | None = "start"
        self._check_limit = RateLimit(check_seconds)
        self._snapshot_limit = RateLimit(_SNAPSHOT_SECONDS)

    def run(self, signals: int | None = None) -> None:
        """Feed until an exception ends it: KeyboardInterrupt by a signal.

        *signals* is the descriptor of the context that raises it, :class:`sbus_programs.systemd.signals.WatchedSignals`.

        Raises:
            KernelError, UdevError: the source rejects an operation of the feed.
            SbusError: the bus is permanently unavailable.
        """
        self._signals = signals
        while True:
            self.turn()

    def turn(self) -> None:
        """Do work that is due, wait for an event or for the next due time, and handle events."""
        self._do_due(self._clock())
        readable = self._wait()
        self._handle_source(is_readable=self._monitor is not None and self._monitor.fileno() in readable)
        self._handle_activity()

    def close(self) -> None:
        """Stop listening."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    # What a feed defines

    @abstractmethod
    def _do_due(self, now: float) -> None:
        """Publish a wanted snapshot, or check the state, when it is due."""

    @abstractmethod
    def _handle_source(self, *, is_readable: bool) -> None:
        """Publish what has happened; *is_readable* is whether the monitor has messages."""

    @property
    @abstractmethod
    def _is_uncertain(self) -> bool:
        """Whether the state must be checked."""

    @property
    def _is_snapshot_possible(self) -> bool:
        """Whether a snapshot is wanted, and nothing must precede it."""
        return self._wanted is not None

    @property
    def _has_room(self) -> bool:
        """Whether the feed can read from the monitor."""
        return True

    def _next_due(self) -> float | None:
        """Return when the next work is due without an event, in monotonic seconds."""
        times = []
        if self._is_snapshot_possible:
            times.append(self._snapshot_limit.next_time)
        if self._is_uncertain and self._monitor is not None:
            times.append(self._check_limit.next_time)
        return min(times, default=None)

    # For feeds

    def _wait(self) -> set[int]:
        """Wait for a readable descriptor or the next due time; return the readable descriptors."""
        poll = select.poll()
        if self._signals is not None:
            poll.register(self._signals, select.POLLIN)
        publisher = self._publisher.fileno()
        if publisher is not None:
            poll.register(publisher, select.POLLIN)
        if self._monitor is not None and self._has_room:
            poll.register(self._monitor.fileno(), select.POLLIN)
        due = self._next_due()
        if publisher is None or self._may_have_activity:
            due = 0.0
        timeout_ms = None if due is None else max(0.0, (due - self._clock()) * 1000)
        return {fd for fd, _ in poll.poll(timeout_ms)}

    def _note_overrun(self, overrun: OverrunError) -> None:
        """Stop listening until the next snapshot: queued messages are older than the lost ones."""
        self.counters.overruns += 1
        self._log(f"overrun {self.counters.overruns}: {overrun}; publishing a new snapshot")
        self.close()
        self._wanted = "overrun"

    def _handle_activity(self) -> None:
        """Handle what was received from the bus."""
        activity = self._publisher.activity()
        self._may_have_activity = activity.has_more
        self.counters.requests += activity.requests
        self.counters.refused += activity.refused
        if activity.reconnected:
            self.counters.reconnects += 1
            self._log("reconnected to the bus; publishing a new snapshot")
            # A first snapshot, or one after an overrun, is due anyway and has a more specific reason.
            self._wanted = "reconnect" if self._wanted in {None, "request"} else self._wanted
        elif activity.requests and self._wanted is None:
            self._wanted = "request"
