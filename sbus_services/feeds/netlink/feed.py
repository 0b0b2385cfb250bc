"""The netlink feed: this machine's links, addresses, routes and neighbours on the bus. Spec: sbus-feed(8).

To lose no change, the feed first listens, then reads the tables, then publishes a snapshot, then publishes changes. After lost messages
it replaces the monitor: messages still queued in the old one are older than the lost ones and would be published as current.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

from sbus_services.feeds.netlink.entries import Attributes, Entry
from sbus_services.feeds.netlink.network_state import EventKind, NetworkEvent, NetworkState
from sbus_services.feeds.netlink.notices import DecodeError, parse_notices
from sbus_services.feeds.netlink.sockets import OverrunError, has_nexthop
from sbus_services.feeds.netlink.stored_values import PublishedKeys
from sbus_services.feeds.snapshot_feed import EventPublisher, SnapshotFeed

_TURN_DATAGRAMS = 256
"""Datagrams read at a time, so that other events are not delayed."""

_CHECK_SECONDS = 0.2

REQUEST = "net/request"
SNAPSHOT_BEGIN = "net/snapshot/begin"
SNAPSHOT_END = "net/snapshot/end"


class ChangeMonitor(Protocol):
    """The kernel's messages, such as :class:`sbus_services.feeds.netlink.sockets.Monitor`."""

    forged: int
    receive_bytes: int

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def read(self, most: int) -> Iterator[bytes]:
        """Yield up to *most* waiting datagrams. Raises OverrunError."""

    def close(self) -> None:
        """Close it."""


class NetlinkSource(Protocol):
    """The source of events, such as :class:`sbus_services.feeds.netlink.sockets.Kernel`."""

    @property
    def interrupted(self) -> int:
        """Number of tables that changed while they were read, and were read again."""

    def listen(self) -> ChangeMonitor:
        """Return a monitor of messages from now on; the caller closes it."""

    def read_tables(self) -> list[Entry]:
        """Return all current entries."""


@dataclass(slots=True)
class NetlinkCounters:
    """Counters, published at the end of each snapshot."""

    overruns: int = 0
    """Number of times that messages of the kernel were lost."""
    undecodable: int = 0
    """Messages of the kernel that could not be decoded."""
    forged: int = 0
    """Netlink messages from a process that is not the kernel."""
    checks: int = 0
    """Number of times that the tables were read because a message did not describe a change completely."""
    requests: int = 0
    """Requests for a snapshot; one snapshot can answer several."""
    refused: int = 0
    """Publications that the bus rejected."""
    reconnects: int = 0
    """Number of reconnections to the bus."""


class NetlinkFeed(SnapshotFeed[NetlinkCounters, ChangeMonitor]):
    """A feed from a network namespace to a bus; the caller owns both.

    *log* is called with lines for the administrator, *ready* with a status line after each snapshot.
    *namespace* is included in each payload unless None; *clock* is monotonic, in seconds.
    *keys* are kept like the entries.
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
        keys: PublishedKeys | None = None,
    ) -> None:
        super().__init__(NetlinkCounters(), publisher, log, ready, check_seconds=_CHECK_SECONDS, clock=clock, keys=keys)
        self._source = source
        self._namespace = namespace
        self._state = NetworkState()

    @property
    def _is_uncertain(self) -> bool:
        """Whether a message did not describe a change completely."""
        return self._state.is_uncertain

    def _handle_source(self, *, is_readable: bool) -> None:
        """Publish the changes that have arrived."""
        if is_readable:
            self._read_changes()

    def _do_due(self, now: float) -> None:
        """Publish a wanted snapshot, or check the state, when it is due."""
        if self._wanted is not None and now >= self._snapshot_limit.next_time:
            reason, self._wanted = self._wanted, None
            is_anew = self._monitor is None
            if is_anew:
                self._start_monitor()
            self._publish_snapshot(reason)
            self._snapshot_limit.record(now, self._clock())
            if is_anew:
                self._read_late_changes()
        elif self._state.is_uncertain and self._monitor is not None and now >= self._check_limit.next_time:
            self._check()
            self._check_limit.record(now, self._clock())

    def _start_monitor(self) -> None:
        """Listen, then read the tables; publish removals since the last snapshot, for subscribers that ignore snapshots."""
        self._monitor = self._source.listen()
        for event in self._state.reconcile(self._source.read_tables()):
            if event.kind is EventKind.REMOVE:
                self._publish_event(event)

    def _check(self) -> None:
        """Read the tables, because a message did not describe a change completely."""
        self.counters.checks += 1
        # First the queued messages, which are older than the tables.
        if self._read_changes() is None:
            return
        for event in self._state.reconcile(self._source.read_tables()):
            self._publish_event(event)
        self._read_late_changes()

    def _read_late_changes(self) -> None:
        """Publish changes that arrived while the tables were read. They may be older than the tables, so check again."""
        if self._read_changes():
            self._state.is_uncertain = True

    def _read_changes(self) -> int | None:
        """Publish changes from the kernel, and return how many; None if messages were lost."""
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
        """Publish the changes in one datagram, and return how many."""
        published = 0
        if has_nexthop(datagram):
            self._state.is_uncertain = True
        try:
            for notice in parse_notices(datagram):
                for event in self._state.apply(notice):
                    self._publish_event(event)
                    published += 1
        except DecodeError as wrong:
            self.counters.undecodable += 1
            self._state.is_uncertain = True
            if self.counters.undecodable == 1:
                self._log(f"{wrong}; reading the kernel tables instead. Further errors are only counted, in {SNAPSHOT_END}")
        return published

    def _publish_snapshot(self, reason: str) -> None:
        """Publish the whole state between its delimiters."""
        self._generation += 1
        events = self._state.snapshot()
        head: Attributes = {"generation": self._generation, "reason": reason}
        self._publish(SNAPSHOT_BEGIN, "snapshot", head)
        for event in events:
            self._publish_event(event)
        self._keys.is_complete = True
        counters: Attributes = {**asdict(self.counters), "interrupted": self._source.interrupted}
        room = self._monitor.receive_bytes >> 10 if self._monitor is not None else None
        self._publish(SNAPSHOT_END, "snapshot", {**head, "entries": len(events), **counters, "receive_kib": room})
        self._ready(f"{len(events)} entries, {self._generation} snapshots (last: {reason}), {self.counters.overruns} overruns")

    def _publish_event(self, event: NetworkEvent) -> None:
        """Publish one event."""
        self._keys.note(event.key, is_removed=event.kind is EventKind.REMOVE)
        self._publish(event.key, event.kind.value, event.attributes)

    def _publish(self, key: str, kind: str, attributes: Attributes) -> None:
        """Publish one message of the feed."""
        message: Attributes = {"event": kind, "time": round(time.time(), 6), **attributes}
        if self._namespace is not None:
            message["namespace"] = self._namespace
        self._may_have_activity = True
        self._publisher.publish(key, json.dumps(message, separators=(",", ":")).encode())
