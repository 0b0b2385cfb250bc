"""A feed of the state of a D-Bus service, such as systemd: a snapshot, then changes. Spec: sbus-feed(8).

To lose no change, the feed first subscribes to the signals, then reads the state, then publishes a snapshot, then publishes changes. When
the service or the D-Bus bus has restarted, it reads the state again and publishes the differences. The signals are always read: while the
message bus is slow, newer states replace older ones in the table of changes, so the D-Bus bus never has to drop signals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from sbus_services.feeds.bus_publisher import LogThrottle
from sbus_services.feeds.dbus.bus_output import BusOutput
from sbus_services.feeds.dbus.changes import Change, ChangeTable
from sbus_services.feeds.dbus.connection import (
    DRIVER,
    Caller,
    CallError,
    DBusConnection,
    DBusSignal,
    NameOwner,
    OwnerCaller,
    cancel,
    end_of,
    run_together,
    stay_connected,
)
from sbus_services.feeds.netlink.entries import Attributes
from sbus_services.feeds.netlink.stored_values import PublishedKeys
from sbus_services.feeds.rate_limit import Pace, RateLimit

RATE = 1000
"""Maximum number of changes per second."""

_SNAPSHOT_SECONDS = 1.0


@dataclass(slots=True)
class StateCounters:
    """Counters, published at the end of each snapshot."""

    forged: int = 0
    """Signals of other senders than the service."""
    undecodable: int = 0
    """Signals that could not be decoded."""
    corrected: int = 0
    """Differences between the entries and a later read of the state, so changes without a signal."""
    restarts: int = 0
    """Times that the service had another connection to the D-Bus bus than before."""
    disconnects: int = 0
    """Times that the connection to the D-Bus bus was lost."""


class StateSource(Protocol):
    """A D-Bus service whose state is published."""

    @property
    def name(self) -> str:
        """Its well-known name."""

    @property
    def prefix(self) -> str:
        """The first segment of its keys, with a slash."""

    @property
    def rules(self) -> Sequence[str]:
        """The match rules of its signals."""

    async def follow(self, caller: Caller, current: Callable[[], None]) -> None:
        """Read the state, call *current*, and keep the state current until cancelled. Raises CallError, DBusUnavailableError."""

    def handle(self, signal: DBusSignal) -> None:
        """Apply one signal of the service. Raises ValueError, TypeError, LookupError or AttributeError if it cannot be decoded."""

    def suspect(self) -> None:
        """Read the state again soon, because a signal could not be applied."""


class StateFeed:
    """A feed from the D-Bus bus at *address*; the caller owns *output*.

    *log* is called with lines for the administrator, *ready* with a status line after each snapshot. *rate* is in changes per second.
    *keys* are kept like the entries.
    """

    def __init__(
        self,
        source: StateSource,
        table: ChangeTable,
        counters: StateCounters,
        output: BusOutput,
        *,
        address: str,
        log: Callable[[str], None],
        ready: Callable[[str], None],
        rate: int = RATE,
        keys: PublishedKeys | None = None,
    ) -> None:
        self.counters = counters
        self._source = source
        self._table = table
        self._output = output
        self._address = address
        self._log = log
        self._ready = ready
        self._pace = Pace(rate)
        self._keys = keys or PublishedKeys()
        self._owner = NameOwner(source.name)
        self._wake = asyncio.Event()
        self._can_begin = asyncio.Event()
        """Set when there is a state to publish."""
        self._is_current = False
        self._wanted: str | None = "start"
        self._snapshot_limit = RateLimit(_SNAPSHOT_SECONDS)
        self._generation = 0
        self._losses: dict[str, int | None] = {}
        self._dropped = 0
        self._call_errors = LogThrottle()
        table.on_pending = self._wake.set

    async def run(self) -> None:
        """Feed until cancelled.

        Raises:
            SbusError: the D-Bus bus cannot be reached at the start, or the bus is permanently unavailable.
        """
        await run_together(self._follow(), self._publish(), self._receive())

    async def _follow(self) -> None:
        """Follow the service on one connection after another."""
        await stay_connected(self._address, self._handle, self._follow_on, self._note_disconnect, self._log)

    async def _follow_on(self, connection: DBusConnection) -> None:
        """Follow the service until *connection* ends."""
        async with end_of(connection) as closed:
            for rule in self._source.rules:
                await connection.add_match(rule)
            await self._owner.follow(connection)
            while not closed.done():
                self._owner.changed.clear()
                await self._follow_owner(connection, closed)
            closed.result()

    def _note_disconnect(self) -> None:
        """Note that the connection to the D-Bus bus has ended."""
        self._owner.lost()
        self.counters.disconnects += 1
        self._note_loss("disconnected", None)

    async def _follow_owner(self, connection: DBusConnection, closed: asyncio.Future[None]) -> None:
        """Follow the service until the name has another owner, or *closed* is done."""
        owner = self._owner.owner
        changed = asyncio.ensure_future(self._owner.changed.wait())
        tasks: list[asyncio.Future[Any]] = [closed, changed]
        if owner:
            tasks.append(asyncio.ensure_future(self._source.follow(OwnerCaller(connection, owner), self._note_current)))
        else:
            self._log(f"{self._source.name} is not on the D-Bus bus; waiting for it")
            self._can_begin.set()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not closed.done() and not changed.done():
                await self._retry_later(tasks[2], changed, closed)
        finally:
            was_current, self._is_current = self._is_current, False
            for task in tasks[1:]:
                await cancel(task)
        if was_current and changed.done() and not closed.done():
            self.counters.restarts += 1
            self._note_loss("restarted", None)
            self._log(f"{self._source.name} has another connection to the D-Bus bus; reading its state again")

    async def _retry_later(self, failed: asyncio.Future[None], *ends: asyncio.Future[Any]) -> None:
        """Log why following the service has *failed*, and wait before the next attempt. Raises what is not an error of a call."""
        try:
            failed.result()
        except CallError as error:
            self._log_throttled(f"{self._source.name}: {error}")
            await asyncio.wait(ends, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)

    def _note_current(self) -> None:
        """Note that the entries are the state of the service."""
        self._is_current = True
        self._can_begin.set()
        self._wake.set()

    def _handle(self, signal: DBusSignal) -> None:
        """Apply one signal if it comes from the service."""
        if signal.sender == DRIVER:
            self._owner.handle(signal)
        elif signal.sender == self._owner.owner:
            try:
                self._source.handle(signal)
            except (ValueError, TypeError, LookupError, AttributeError) as wrong:
                self.counters.undecodable += 1
                self._source.suspect()
                if self.counters.undecodable == 1:
                    self._log(f"cannot decode the signal {signal.interface}.{signal.member}: {wrong!r}; reading the state again")
        elif self._owner.owner:
            self.counters.forged += 1
        self._wake.set()

    async def _receive(self) -> None:
        """Receive requests and reconnections."""
        while True:
            event = await self._output.receive()
            # A first snapshot is due anyway, and a snapshot after a reconnection answers requests too.
            if self._wanted is None or (event == "reconnect" and self._wanted == "request"):
                self._wanted = event
            self._wake.set()

    async def _publish(self) -> None:
        """Publish snapshots and changes as they are due."""
        await self._can_begin.wait()
        while True:
            self._wake.clear()
            now = time.monotonic()
            await self._report_losses()
            if self._wanted is not None and now >= self._snapshot_limit.next_time:
                reason, self._wanted = self._wanted, None
                await self._publish_snapshot(reason)
                self._snapshot_limit.record(now, time.monotonic())
            elif (change := self._table.take(now)) is not None:
                await self._publish_change(change)
                await self._pace.keep()
            else:
                await self._wait_due(now)

    async def _wait_due(self, now: float) -> None:
        """Wait until there may be something to publish."""
        times = [time for time in (self._table.due(), self._snapshot_limit.next_time if self._wanted else None) if time is not None]
        try:
            async with asyncio.timeout(max(0.0, min(times) - now) if times else None):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _publish_snapshot(self, reason: str) -> None:
        """Publish the pending changes, then the whole state between its delimiters."""
        changes = self._table.take_all(time.monotonic())
        if reason != "start":
            for change in changes:
                await self._publish_change(change)
        self._generation += 1
        head: Attributes = {"generation": self._generation, "reason": reason}
        entries = self._table.snapshot()
        await self._output.publish(f"{self._source.prefix}snapshot/begin", "snapshot", head)
        for entry in entries:
            await self._publish_change(entry)
        self._keys.is_complete = True
        end = {**head, "entries": len(entries), "connected": self._is_current, **self._all_counters()}
        await self._output.publish(f"{self._source.prefix}snapshot/end", "snapshot", end)
        self._ready(f"{len(entries)} entries, {self._generation} snapshots (last: {reason}), {self.counters.disconnects} disconnects")

    def _all_counters(self) -> Attributes:
        """Return the counters of the process."""
        output = self._output
        counted: Attributes = {"coalesced": self._table.coalesced, "dropped": self._table.dropped, **asdict(self.counters)}
        return {**counted, "requests": output.requests, "refused": output.refused, "reconnects": output.reconnects}

    async def _publish_change(self, change: Change) -> None:
        """Publish one change, or one entry of a snapshot."""
        self._keys.note(change.key, is_removed=change.kind.value == "remove")
        attributes = {**change.attributes, "old": change.old} if change.old else change.attributes
        await self._output.publish(change.key, change.kind.value, attributes)

    async def _report_losses(self) -> None:
        """Publish what may be missing, before the changes after it."""
        if self._table.dropped > self._dropped:
            self._note_loss("backlog", self._table.dropped - self._dropped)
            self._dropped = self._table.dropped
        losses, self._losses = self._losses, {}
        for reason, count in losses.items():
            await self._output.publish(f"{self._source.prefix}lost", "lost", {"reason": reason, "count": count, **self._all_counters()})

    def _note_loss(self, reason: str, count: int | None) -> None:
        """Add to the losses to report; an unknown number stays unknown."""
        before = self._losses.get(reason, 0)
        self._losses[reason] = None if count is None or before is None else before + count
        self._wake.set()

    def _log_throttled(self, line: str) -> None:
        """Log the 1st, 10th, 100th … error."""
        count = self._call_errors.count()
        if count is not None:
            self._log(f"{line} ({count} so far)" if count > 1 else line)
