"""The udev feed: events of devices, and the devices that are present, on the bus. Spec: sbus-feed(8).

To lose no change, the feed first listens, then reads the devices, then publishes a snapshot, then publishes events. After lost messages it
replaces the monitor, and the snapshot with the reason ``overrun`` reports the gap.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

from sbus_services.feeds.netlink.network_state import EventKind
from sbus_services.feeds.netlink.sockets import OverrunError
from sbus_services.feeds.netlink.stored_values import PublishedKeys
from sbus_services.feeds.snapshot_feed import EventPublisher, SnapshotFeed
from sbus_services.feeds.udev.devices import (
    HEAD,
    PRESENT,
    Device,
    DeviceEvent,
    DeviceState,
    StateMessage,
    WaitingEvents,
    payload_fields,
)

REQUEST = "udev/request"
SNAPSHOT_BEGIN = "udev/snapshot/begin"
SNAPSHOT_END = "udev/snapshot/end"

STREAM = "udev"
"""The stream of the store's drop-in."""

PRESENT_KEYS = (f"{HEAD}*/{PRESENT}/",)
"""The pattern of the keys of present devices."""

RATE = 1_000
"""Default of the most events per second. The start of udevd reports some hundred devices."""

_TURN_EVENTS = 256
"""Events read at a time, so that requests are not delayed."""

_DRAIN_MESSAGES = 64
"""Messages of a snapshot after which waiting events are read: the kernel's buffer is small for a feed without privileges."""

_CHECK_SECONDS = 1.0


class UdevMonitor(Protocol):
    """The messages of udevd, such as :class:`sbus_services.feeds.udev.sources.EventMonitor`."""

    receive_bytes: int
    undecodable: int

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def read(self, most: int) -> Iterator[DeviceEvent]:
        """Yield up to *most* waiting events. Raises OverrunError."""

    def close(self) -> None:
        """Close it."""


class UdevSource(Protocol):
    """The source of events and devices, such as :class:`sbus_services.feeds.udev.sources.Udev`."""

    undecodable: int

    def listen(self) -> UdevMonitor:
        """Return a monitor of events from now on; the caller closes it."""

    def read_devices(self) -> Iterable[Device]:
        """Return all devices that are present."""

    def read_device(self, path: str) -> Device | None:
        """Return the device at *path*, None if it is not present."""


@dataclass(slots=True)
class UdevCounters:
    """Counters, published at the end of each snapshot."""

    events: int = 0
    """Events published."""
    coalesced: int = 0
    """Events replaced by a newer one with the same key before they were published."""
    overruns: int = 0
    """Number of times that events were lost."""
    undecodable: int = 0
    """Events and devices without a valid name or action."""
    shortened: int = 0
    """Payloads with shortened or omitted properties."""
    checks: int = 0
    """Number of times that all devices were read because the paths of some had changed, or an event was not readable."""
    requests: int = 0
    """Requests for a snapshot; one snapshot can answer several."""
    refused: int = 0
    """Publications that the bus rejected."""
    reconnects: int = 0
    """Number of reconnections to the bus."""


class UdevFeed(SnapshotFeed[UdevCounters, UdevMonitor]):
    """A feed from udev to a bus; the caller owns both.

    *log* is called with lines for the administrator, *ready* with a status line after each snapshot; *rate* is in events per second;
    *clock* is monotonic, in seconds. *keys* are kept like those of the devices.
    """

    def __init__(
        self,
        source: UdevSource,
        publisher: EventPublisher,
        log: Callable[[str], None],
        ready: Callable[[str], None],
        *,
        rate: int = RATE,
        clock: Callable[[], float] = time.monotonic,
        keys: PublishedKeys | None = None,
    ) -> None:
        super().__init__(UdevCounters(), publisher, log, ready, check_seconds=_CHECK_SECONDS, clock=clock, keys=keys)
        self._source = source
        self._state = DeviceState()
        self._waiting = WaitingEvents(rate)

    @property
    def _is_uncertain(self) -> bool:
        """Whether the paths of devices have changed, or an event could not be read."""
        return self._state.is_uncertain

    @property
    def _is_snapshot_possible(self) -> bool:
        """Whether a snapshot is wanted and not too early: events that wait since before an overrun are published before it."""
        return super()._is_snapshot_possible and (self._monitor is not None or not self._waiting)

    @property
    def _has_room(self) -> bool:
        """Whether more events can wait."""
        return not self._waiting.is_full

    def _next_due(self) -> float | None:
        """Return when the next work is due without an event, in monotonic seconds."""
        times = (super()._next_due(), self._waiting.next_time())
        return min((each for each in times if each is not None), default=None)

    def _handle_source(self, *, is_readable: bool) -> None:
        """Read what has arrived, and publish what may be published now."""
        if is_readable:
            self._read_events()
        self._publish_events()

    def _do_due(self, now: float) -> None:
        """Publish a wanted snapshot, or check the state, when it is due."""
        if self._is_snapshot_possible and now >= self._snapshot_limit.next_time:
            reason, self._wanted = self._wanted or "", None
            if self._monitor is None:
                self._start_monitor()
            self._publish_snapshot(reason)
            self._snapshot_limit.record(now, self._clock())
        elif self._state.is_uncertain and self._monitor is not None and now >= self._check_limit.next_time:
            self.counters.checks += 1
            for message in self._state.reconcile(self._source.read_devices()):
                self._publish_state(message)
            self._check_limit.record(now, self._clock())

    def _start_monitor(self) -> None:
        """Listen, then read the devices; publish removals since the last snapshot, for subscribers that ignore snapshots."""
        self._monitor = self._source.listen()
        for message in self._state.reconcile(self._source.read_devices()):
            if message.kind is EventKind.REMOVE:
                self._publish_state(message)

    # Events

    def _read_events(self, *, publishes: bool = True) -> None:
        """Read events from udev unless too many wait, and let them wait unless it *publishes* them."""
        monitor = self._monitor
        if monitor is None or self._waiting.is_full:
            return
        try:
            for event in monitor.read(_TURN_EVENTS):
                self.counters.coalesced += self._waiting.add(event)
                if publishes:
                    self._publish_events()
        except OverrunError as overrun:
            self._note_overrun(overrun)
        finally:
            self._note_undecodable(monitor)

    def _note_undecodable(self, monitor: UdevMonitor) -> None:
        """Count events that could not be read, and have all devices read for what may have changed by them."""
        if monitor.undecodable:
            self.counters.undecodable += monitor.undecodable
            monitor.undecodable = 0
            self._state.is_uncertain = True

    def _publish_events(self) -> None:
        """Publish the events that may be published now, each before what has changed by it."""
        while (taken := self._waiting.take(self._clock())) is not None:
            event, coalesced = taken
            self.counters.events += 1
            self._publish(event.key, {"event": event.action, "coalesced": coalesced}, event.device)
            for message in self._changes(event):
                self._publish_state(message)

    def _changes(self, event: DeviceEvent) -> list[StateMessage]:
        """Return what has changed by *event*: the device is read, because the event also describes what only happened."""
        path = event.device.path
        device = self._source.read_device(path)
        return self._state.move(event.former_path, path, device) if event.former_path else self._state.update(path, device)

    # The bus

    def _publish_snapshot(self, reason: str) -> None:
        """Publish all devices between the delimiters."""
        self._generation += 1
        messages = self._state.snapshot()
        head = {"event": EventKind.SNAPSHOT.value, "generation": self._generation, "reason": reason}
        self._publish(SNAPSHOT_BEGIN, head)
        room = self._monitor.receive_bytes >> 10 if self._monitor is not None else None
        for number, message in enumerate(messages, 1):
            self._publish_state(message)
            if number % _DRAIN_MESSAGES == 0:
                self._read_events(publishes=False)
        self._keys.is_complete = True
        self.counters.undecodable += self._source.undecodable
        self._source.undecodable = 0
        counters = {**asdict(self.counters), "waiting": len(self._waiting), "receive_kib": room}
        self._publish(SNAPSHOT_END, {**head, "devices": len(messages), **counters})
        self._ready(f"{len(messages)} devices, {self.counters.events} events, {self.counters.overruns} overruns (last snapshot: {reason})")

    def _publish_state(self, message: StateMessage) -> None:
        """Publish one message about a device."""
        self._keys.note(message.device.key, is_removed=message.kind is EventKind.REMOVE)
        self._publish(message.device.key, {"event": message.kind.value}, message.device)

    def _publish(self, key: str, head: dict[str, object], device: Device | None = None) -> None:
        """Publish one message of the feed."""
        fields = {} if device is None else payload_fields(device.properties)
        self.counters.shortened += "cut" in fields or "omitted" in fields
        self._may_have_activity = True
        message = {**head, "time": round(time.time(), 6), **fields}
        self._publisher.publish(key, json.dumps(message, separators=(",", ":")).encode())
