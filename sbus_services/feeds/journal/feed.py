"""The journal feed publishes entries in order, from where it stopped, and reports each entry that it could not publish.

The journal itself is the queue: entries that the bus does not accept yet wait there, not in memory. The position is saved only after the
bus has routed all entries before it. So after a crash some entries may be published twice, with equal cursors, but none is lost silently.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

from sbus_services.feeds.bus_publisher import LogThrottle
from sbus_services.feeds.journal.batch_reader import BatchReader, DamagedEntry, Gap, JournalSource
from sbus_services.feeds.journal.checked_publisher import Batch
from sbus_services.feeds.journal.entry import LOST, BadCursorError, Cursor, CursorFile

BATCH_SECONDS = 0.01
"""Shortest interval between two batches. Each costs three control messages, of which a user may send 10,000 per second."""

SAVE_SECONDS = 1.0
"""Shortest interval at which the position is saved, and so the longest time that is published twice after a power failure."""

STATUS_SECONDS = 10.0
"""Interval at which the status is sent to the service manager."""

RATE = 5000
"""Maximum number of entries per second: subscribers' queues hold 64 MiB, so active readers have time to read."""

BACKLOG_SECONDS = 86_400.0
"""Maximum age of entries that are published after the feed was stopped, in time for which the machine ran."""


class BatchPublisher(Protocol):
    """The bus, such as :class:`sbus_services.feeds.journal.checked_publisher.CheckedPublisher`."""

    reconnects: int

    def deliver(self, batch: Batch) -> int:
        """Publish *batch*; return how many messages were rejected."""


@dataclass(slots=True)
class JournalCounters:
    """Counters, published in each loss notice and sent to the service manager."""

    entries: int = 0
    """Entries sent to the bus, including rejected ones."""
    cut: int = 0
    """Entries that were too long to be published whole."""
    echoes: int = 0
    """Omitted log entries of the bus that publishing causes."""
    missing: int = 0
    """Missing entries, as far as their number is known."""
    unreadable: int = 0
    """Damaged entries."""
    refused: int = 0
    """Entries and loss notices that the bus rejected."""
    unsaved: int = 0
    """Failed attempts to save the position."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """First start: the last ``lines`` entries. Later starts: where the feed stopped, or the last ``backlog_seconds``."""

    lines: int = 0
    backlog_seconds: float = BACKLOG_SECONDS


class JournalFeed:
    """A feed from a journal to a bus; the caller owns both.

    *log* is called with lines for the administrator, *ready* with a status line. *clock* is monotonic, *wall* since 1970, both in seconds.
    """

    def __init__(
        self,
        source: JournalSource,
        publisher: BatchPublisher,
        file: CursorFile,
        log: Callable[[str], None],
        ready: Callable[[str], None],
        *,
        start: StartPosition = StartPosition(),
        rate: int = RATE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.counters = JournalCounters()
        self._source = source
        self._reader = BatchReader(source, start.backlog_seconds)
        self._publisher = publisher
        self._file = file
        self._log = log
        self._ready = ready
        self._start = start
        self._rate = rate
        self._clock = clock
        self._wall = wall
        self._signals: int | None = None
        self._routed: Cursor | None = None
        """Position up to which the bus has routed all entries: this is saved."""
        self._saved: Cursor | None = None
        self._unreported: dict[str, int | None] = {}
        """Losses to report with the next batch: number of entries by reason, None if unknown."""
        self._throttles = {reason: LogThrottle() for reason in ("unreadable", "missing", "unsaved")}
        self._due = self._save_due = self._status_due = clock()

    def run(self, signals: int | None = None) -> None:
        """Feed until an exception ends it: KeyboardInterrupt by a signal.

        *signals* is the descriptor of the context that raises it, :class:`sbus_programs.systemd.signals.WatchedSignals`.

        Raises:
            SbusError: the journal cannot be read, or the bus does not protect it.
        """
        self._signals = signals
        try:
            self.begin()
            while True:
                self.turn()
        finally:
            self.save()

    def begin(self) -> None:
        """Seek to the start and save that position, so that entries are not lost if the feed ends before the first entry."""
        saved = self._load()
        if saved is None:
            self._reader.begin_near_end(self._start.lines)
            self._routed = self._reader.last
            self.save()
        else:
            self._saved = self._routed = saved
            self._reader.begin_after(saved)
        self._report_status()

    def turn(self) -> None:
        """Publish a batch, or wait for entries."""
        began = self._clock()
        batch, is_idle = self._collect()
        if batch:
            self._deliver(batch)
            self._due = began + max(BATCH_SECONDS, len(batch) / self._rate)
        self._routed = self._reader.last
        self._do_due(self._clock())
        if batch or is_idle:
            self._wait(is_idle=is_idle and not batch)

    def save(self) -> None:
        """Save the position up to which all is routed, if it has changed."""
        if self._routed is None or self._routed == self._saved:
            return
        try:
            self._file.save(self._routed)
        except OSError as wrong:
            self.counters.unsaved += 1
            self._log_throttled("unsaved", f"{self._file.path}: cannot save the journal cursor: {wrong.strerror or wrong}")
            return
        self._saved = self._routed

    def _load(self) -> Cursor | None:
        """Return the saved position; report an unreadable file as a loss of unknown size."""
        try:
            return self._file.load()
        except (BadCursorError, OSError) as wrong:
            self._log(f"{self._file.path}: {getattr(wrong, 'strerror', None) or wrong}; starting without a saved cursor")
            self._unreported["cursor"] = None
            return None

    def _collect(self) -> tuple[Batch, bool]:
        """Return a batch of entries with notices of losses, and whether nothing was read."""
        batch: list[tuple[str, bytes]] = []
        items = self._reader.read()
        for item in items:
            if isinstance(item, Gap):
                self._note_missing(item)
            elif isinstance(item, DamagedEntry):
                self._note_damaged(item)
            elif item.is_echo:
                self.counters.echoes += 1
            else:
                self.counters.entries += 1
                self.counters.cut += not item.is_whole
                batch.append((item.key, item.payload))
        return self._with_losses(batch), not items

    def _deliver(self, batch: Batch) -> None:
        """Publish *batch* and wait until it is routed."""
        refused = self._publisher.deliver(batch)
        if refused:
            self.counters.refused += refused
            # Reported with the next entry. A notice on its own might be rejected too, and so on.
            self._note_loss("refused", refused)

    def _with_losses(self, batch: list[tuple[str, bytes]]) -> Batch:
        """Return *batch* preceded by notices of each kind of loss. All but ``refused`` are sent without an entry too."""
        if not batch and not self._unreported.keys() - {"refused"}:
            return batch
        losses = [self._loss(reason, count) for reason, count in self._unreported.items()]
        self._unreported.clear()
        return losses + batch

    def _loss(self, reason: str, count: int | None) -> tuple[str, bytes]:
        """Return a loss notice."""
        notice = {"time": round(self._wall(), 6), "reason": reason, "count": count, **asdict(self.counters)}
        return LOST, json.dumps(notice, separators=(",", ":")).encode()

    def _note_missing(self, gap: Gap) -> None:
        """Record missing entries."""
        self.counters.missing += gap.count or 0
        self._note_loss(gap.reason, gap.count)
        why = "older than --backlog" if gap.reason == "backlog" else "that are no longer in the journal"
        self._log_throttled("missing", f"skipped {'an unknown number of' if gap.count is None else gap.count} entries {why}")

    def _note_damaged(self, entry: DamagedEntry) -> None:
        """Record a damaged entry."""
        self.counters.unreadable += 1
        self._note_loss("unreadable", 1)
        self._log_throttled("unreadable", entry.why)

    def _note_loss(self, reason: str, count: int | None) -> None:
        """Add to the losses to report; an unknown number stays unknown."""
        before = self._unreported.get(reason, 0)
        self._unreported[reason] = None if count is None or before is None else before + count

    def _log_throttled(self, throttle: str, line: str) -> None:
        """Log the 1st, 10th, 100th … occurrence, because the line becomes a journal entry."""
        count = self._throttles[throttle].count()
        if count is not None:
            self._log(f"{line} ({count} so far)" if count > 1 else line)

    def _do_due(self, now: float) -> None:
        """Save the position and send the status when they are due."""
        if now >= self._save_due:
            self.save()
            self._save_due = now + SAVE_SECONDS
        if now >= self._status_due:
            self._report_status()
            self._status_due = now + STATUS_SECONDS

    def _report_status(self) -> None:
        """Send the status to the service manager."""
        counters = self.counters
        lost = counters.missing + counters.unreadable + counters.refused
        self._ready(f"{counters.entries} entries, {lost} lost, {counters.cut} cut, {self._publisher.reconnects} reconnects")

    def _wait(self, *, is_idle: bool) -> None:
        """Wait until the next batch may be published; if there is nothing to publish, also for new entries."""
        now = self._clock()
        if not is_idle:
            # Do not poll the journal: under load it is always readable, so each entry would become a batch.
            select.select([], [], [], max(0.0, self._due - now))
            return
        poll = select.poll()
        poll.register(self._source.fileno(), select.POLLIN)
        if self._signals is not None:
            poll.register(self._signals, select.POLLIN)
        times = [] if self._routed == self._saved else [max(0.0, self._save_due - now) * 1000]
        bound = self._source.timeout_ms()
        if bound is not None:
            times.append(bound)
        poll.poll(min(times, default=None))
        self._reader.process()
