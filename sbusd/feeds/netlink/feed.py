"""The netlink feed: this machine's links, addresses, routes and neighbours on the bus. Spec: sbus-feed(8).

The order that loses nothing: listen for changes first, read the tables second, tell the whole, then tell the changes. After lost
messages the monitor is made anew: what still waits in the old one is older than what was lost, and would be told as the truth.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

from sbusd.feeds.bus_publisher import BusActivity
from sbusd.feeds.netlink import keys
from sbusd.feeds.netlink.entries import Attributes, Entry
from sbusd.feeds.netlink.notices import DecodeError, parse_notices
from sbusd.feeds.netlink.sockets import OverrunError
from sbusd.feeds.netlink.state import EventKind, NetworkEvent, NetworkState
from sbusd.feeds.rate_limit import RateLimit

_TURN_DATAGRAMS = 256
"""Datagrams read in a turn before anything else has its turn."""

_CHECK_SECONDS = 0.2
_SNAPSHOT_SECONDS = 1.0


class EventPublisher(Protocol):
    """The bus, as far as a feed needs it."""

    def fileno(self) -> int | None:
        """Return the descriptor to poll, None while the bus is away."""

    def publish(self, key: str, payload: bytes) -> None:
        """Publish one message; waits while the bus is away."""

    def activity(self) -> BusActivity:
        """Return what came since the last time; waits only while the bus is away."""


class ChangeMonitor(Protocol):
    """The kernel's messages, as :class:`sbusd.feeds.netlink.sockets.Monitor` has them."""

    forged: int
    receive_bytes: int

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def read(self, most: int) -> Iterator[bytes]:
        """Yield the datagrams that are there, *most* of them at most. Raises OverrunError."""

    def close(self) -> None:
        """Close it."""


class NetlinkSource(Protocol):
    """What the feed is about, as :class:`sbusd.feeds.netlink.sockets.Kernel` has it."""

    @property
    def interrupted(self) -> int:
        """Tables that changed while they were read, and were read anew."""

    def listen(self) -> ChangeMonitor:
        """Return the messages from now on; the caller closes it."""

    def read_tables(self) -> list[Entry]:
        """Return all entries now."""


@dataclass(slots=True)
class NetlinkCounters:
    """What the feed has done; published at the end of each snapshot."""

    overruns: int = 0
    """Times that messages of the kernel were lost."""
    undecodable: int = 0
    """Messages of the kernel that could not be decoded."""
    forged: int = 0
    """Netlink messages from a process that is not the kernel."""
    checks: int = 0
    """Times that the tables were read because a message left something open."""
    requests: int = 0
    """Requests for a snapshot; several are answered by one."""
    refused: int = 0
    """Publications that the bus refused."""
    reconnects: int = 0
    """Times that the bus was lost and found again."""


class NetlinkFeed:
    """One feed from a network namespace to a bus; both stay the caller's.

    *log* takes one line for the person who runs it; *ready* is called after each snapshot with a line of status.
    *namespace* is said in each payload, if it is not None; *clock* gives seconds that never go back.
    """

    def __init__(
        self,
        source: NetlinkSource,
        publisher: EventPublisher,
        log: Callable[[str], None],
        ready: Callable[[str], None],
        *,
        namespace: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = NetlinkCounters()
        self._source = source
        self._publisher = publisher
        self._log = log
        self._ready = ready
        self._namespace = namespace
        self._clock = clock
        self._monitor: ChangeMonitor | None = None
        self._state = NetworkState()
        self._generation = 0
        self._may_have_activity = False
        """Whether something may have come from the bus that polling does not show: publishing reads when it cannot write."""
        self._wanted: str | None = "start"
        self._check_limit = RateLimit(_CHECK_SECONDS)
        self._snapshot_limit = RateLimit(_SNAPSHOT_SECONDS)

    def run(self) -> None:
        """Feed until an exception ends it: KeyboardInterrupt by a signal.

        Raises:
            KernelError: the kernel refuses what the feed needs.
            SbusError: the bus is gone for good.
        """
        while True:
            self.turn()

    def turn(self) -> None:
        """Do what is due, wait until something happens or becomes due, and handle it."""
        self._do_due(self._clock())
        readable = self._wait()
        if self._monitor is not None and self._monitor.fileno() in readable:
            self._read_changes()
        self._handle_activity()

    def close(self) -> None:
        """Stop listening."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def _wait(self) -> set[int]:
        """Return the descriptors that are readable, after waiting for one or for the next thing that is due."""
        poll = select.poll()
        publisher = self._publisher.fileno()
        if publisher is not None:
            poll.register(publisher, select.POLLIN)
        if self._monitor is not None:
            poll.register(self._monitor.fileno(), select.POLLIN)
        due = self._next_due()
        if publisher is None or self._may_have_activity:
            due = 0.0
        timeout_ms = None if due is None else max(0.0, (due - self._clock()) * 1000)
        return {fd for fd, _ in poll.poll(timeout_ms)}

    def _next_due(self) -> float | None:
        """Return when there is something to do though nothing happens, in seconds of the monotonic clock."""
        times = []
        if self._wanted is not None:
            times.append(self._snapshot_limit.next)
        if self._state.is_uncertain and self._monitor is not None:
            times.append(self._check_limit.next)
        return min(times, default=None)

    def _do_due(self, now: float) -> None:
        """Tell the snapshot that is wanted, or check the state, if it is time to."""
        if self._wanted is not None and now >= self._snapshot_limit.next:
            reason, self._wanted = self._wanted, None
            is_anew = self._monitor is None
            if is_anew:
                self._start_monitor()
            self._publish_snapshot(reason)
            self._snapshot_limit.record(now, self._clock())
            if is_anew:
                self._read_late_changes()
        elif self._state.is_uncertain and self._monitor is not None and now >= self._check_limit.next:
            self._check()
            self._check_limit.record(now, self._clock())

    def _start_monitor(self) -> None:
        """Listen, then read the tables; tell what is gone since the last time, for those who keep no snapshots."""
        self._monitor = self._source.listen()
        for event in self._state.reconcile(self._source.read_tables()):
            if event.kind is EventKind.REMOVE:
                self._publish_event(event)

    def _check(self) -> None:
        """Read the tables, because a message left open what else has changed."""
        self.counters.checks += 1
        # First what waits: it is older than the tables.
        if self._read_changes() is None:
            return
        for event in self._state.reconcile(self._source.read_tables()):
            self._publish_event(event)
        self._read_late_changes()

    def _read_late_changes(self) -> None:
        """Tell what came while the tables were read: it may be older than they are, and undo what they said, so check again."""
        if self._read_changes():
            self._state.is_uncertain = True

    def _read_changes(self) -> int | None:
        """Tell what the kernel says, and return how many events that made; None if messages were lost."""
        published = 0
        monitor = self._monitor
        if monitor is None:
            return None
        try:
            for datagram in monitor.read(_TURN_DATAGRAMS):
                published += self._handle_datagram(datagram)
        except OverrunError as overrun:
            self._note_overrun(overrun)
            return None
        finally:
            self.counters.forged += monitor.forged
            monitor.forged = 0
        return published

    def _handle_datagram(self, datagram: bytes) -> int:
        """Tell what one datagram says, and return how many events that made."""
        published = 0
        try:
            for notice in parse_notices(datagram):
                for event in self._state.apply(notice):
                    self._publish_event(event)
                    published += 1
        except DecodeError as wrong:
            self.counters.undecodable += 1
            self._state.is_uncertain = True
            if self.counters.undecodable == 1:
                self._log(f"{wrong}; reading the kernel tables instead. Further errors are only counted, in {keys.SNAPSHOT_END}")
        return published

    def _note_overrun(self, overrun: OverrunError) -> None:
        """Stop listening until the next snapshot: what still waits is older than what was lost."""
        self.counters.overruns += 1
        self._log(f"overrun {self.counters.overruns}: {overrun}; publishing a new snapshot")
        self.close()
        self._wanted = "overrun"

    def _handle_activity(self) -> None:
        """Handle what came from the bus."""
        activity = self._publisher.activity()
        self._may_have_activity = activity.has_more
        self.counters.requests += activity.requests
        self.counters.refused += activity.refused
        if activity.reconnected:
            self.counters.reconnects += 1
            self._log("reconnected to the bus; publishing a new snapshot")
            # A first snapshot, or one after an overrun, is due in any case and says more.
            self._wanted = "reconnect" if self._wanted in {None, "request"} else self._wanted
        elif activity.requests and self._wanted is None:
            self._wanted = "request"

    def _publish_snapshot(self, reason: str) -> None:
        """Tell all that is known, between its delimiters."""
        self._generation += 1
        events = self._state.snapshot()
        head: Attributes = {"generation": self._generation, "reason": reason}
        self._publish(keys.SNAPSHOT_BEGIN, "snapshot", head)
        for event in events:
            self._publish_event(event)
        counters: Attributes = {**asdict(self.counters), "interrupted": self._source.interrupted}
        room = self._monitor.receive_bytes >> 10 if self._monitor is not None else None
        self._publish(keys.SNAPSHOT_END, "snapshot", {**head, "entries": len(events), **counters, "receive_kib": room})
        self._ready(f"{len(events)} entries, {self._generation} snapshots (last: {reason}), {self.counters.overruns} overruns")

    def _publish_event(self, event: NetworkEvent) -> None:
        """Publish one event."""
        self._publish(event.key, event.kind.value, event.attributes)

    def _publish(self, key: str, kind: str, attributes: Attributes) -> None:
        """Publish one message of the feed."""
        message: Attributes = {"event": kind, "time": round(time.time(), 6), **attributes}
        if self._namespace is not None:
            message["namespace"] = self._namespace
        self._may_have_activity = True
        self._publisher.publish(key, json.dumps(message, separators=(",", ":")).encode())
