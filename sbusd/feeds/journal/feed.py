"""The journal feed: entries in their order, from where it stopped, and a word on each one that it could not publish.

The journal itself is the queue: what the bus does not take yet waits there, not in memory. The place is saved only when the bus has
routed what stands before it, so after any end some entries may come twice (their cursor tells), but none is passed over in silence.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

from sbusd.feeds.journal.checked_publisher import Batch
from sbusd.feeds.journal.cursor import BadCursorError, Cursor, CursorFile
from sbusd.feeds.journal.echo import is_echo
from sbusd.feeds.journal.entry import LOST, JournalEntry
from sbusd.feeds.journal.reader import UnreadableEntryError
from sbusd.feeds.rate_limit import LogThrottle

BATCH_ENTRIES = 256
"""Entries between two questions to the bus whether the public is still kept out."""

BATCH_BYTES = 1 << 20
"""Payloads in a batch: it is held in memory until the bus has routed it."""

BATCH_SECONDS = 0.01
"""Shortest time between two batches: each makes the bus handle three control messages, of which a user has 10,000 a second."""

SAVE_SECONDS = 1.0
"""How often the place is written to disk at most: what comes twice after a loss of power is no more than that."""

STATUS_SECONDS = 10.0
"""How often the service manager is told what was done."""

RATE = 5000
"""Entries published in a second at most: subscribers' queues hold 64 MiB, so one that reads has time to."""

BACKLOG_SECONDS = 86_400.0
"""How old an entry may be that is published after the feed was stopped."""


class JournalSource(Protocol):
    """The journal, as :class:`sbusd.feeds.journal.reader.JournalReader` has it."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def timeout_ms(self) -> int | None:
        """Return how long to poll at most."""

    def process(self) -> None:
        """Take note of what has changed."""

    def seek_last(self, lines: int) -> Cursor | None:
        """Go to the last *lines* entries; return the place before them."""

    def seek(self, cursor: Cursor) -> None:
        """Go to *cursor*, or behind it."""

    def seek_time(self, seconds: float) -> None:
        """Go to the first entry since *seconds*."""

    def read(self) -> JournalEntry | None:
        """Return the next entry. Raises UnreadableEntryError."""


class BatchPublisher(Protocol):
    """The bus, as :class:`sbusd.feeds.journal.checked_publisher.CheckedPublisher` has it."""

    reconnects: int

    def deliver(self, batch: Batch) -> int:
        """Publish *batch*; return how many of it were refused."""


@dataclass(slots=True)
class JournalCounters:
    """What the feed has done; told with each loss, and to the service manager."""

    entries: int = 0
    """Entries given to the bus, those that it refused too."""
    cut: int = 0
    """Entries that were too long to be published whole."""
    echoes: int = 0
    """Records of the bus that publishing causes; left out."""
    missing: int = 0
    """Entries that were gone, as far as their number is known."""
    unreadable: int = 0
    """Damaged entries."""
    refused: int = 0
    """Entries, and words on losses, that the bus refused."""
    unsaved: int = 0
    """Times that the place could not be saved."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where to begin: with the last ``lines`` entries the first time, later where it stopped, but no further back than the backlog."""

    lines: int = 0
    backlog_seconds: float = BACKLOG_SECONDS


class JournalFeed:
    """One feed from a journal to a bus; both stay the caller's.

    *log* takes one line for the person who runs it; *ready* is called with a line of status. *clock* gives seconds that
    never go back, *wall* those since 1970.
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
        self._publisher = publisher
        self._file = file
        self._log = log
        self._ready = ready
        self._start = start
        self._rate = rate
        self._clock = clock
        self._wall = wall
        self._read: Cursor | None = None
        """Place of the last entry that was read."""
        self._routed: Cursor | None = None
        """Of the last that the bus has routed, or that needs no routing: what is saved."""
        self._saved: Cursor | None = None
        self._gap_reason: str | None = None
        """Why entries may be missing before the next one, until that is read."""
        self._damaged = 0
        """Damaged entries since the last that was read."""
        self._unreported: dict[str, int | None] = {}
        """Losses to be told with the next batch: how many entries by reason, None if that is not known."""
        self._throttles = {reason: LogThrottle() for reason in ("unreadable", "missing", "unsaved")}
        self._due = self._save_due = self._status_due = clock()

    def run(self) -> None:
        """Feed until an exception ends it: KeyboardInterrupt by a signal.

        Raises:
            SbusError: the journal cannot be read, or the bus must not have it.
        """
        try:
            self.begin()
            while True:
                self.turn()
        finally:
            self.save()

    def begin(self) -> None:
        """Go to where the feed begins, and keep that: an end before the first entry must not lose what comes meanwhile."""
        saved = self._load()
        if saved is None:
            self._routed = self._read = self._source.seek_last(self._start.lines)
            self.save()
        else:
            self._saved = self._routed = self._read = saved
            oldest = self._wall() - self._start.backlog_seconds
            is_too_old = saved.realtime / 1e6 < oldest
            self._gap_reason = "backlog" if is_too_old else "vacuumed"
            if is_too_old:
                self._source.seek_time(oldest)
            else:
                self._source.seek(saved)
        self._report_status()

    def turn(self) -> None:
        """Publish a batch of what there is, or wait for more."""
        began = self._clock()
        batch, has_all = self._collect()
        if batch:
            self._deliver(batch)
            self._due = began + max(BATCH_SECONDS, len(batch) / self._rate)
        self._routed = self._read
        self._do_due(self._clock())
        if batch or has_all:
            self._wait(is_idle=not batch)

    def save(self) -> None:
        """Save the place up to which all is routed, if it is a new one."""
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
        """Return the place that was saved; that there was one that cannot be read is told as a loss of unknown size."""
        try:
            return self._file.load()
        except (BadCursorError, OSError) as wrong:
            self._log(f"{self._file.path}: {getattr(wrong, 'strerror', None) or wrong}; starting without a saved cursor")
            self._unreported["cursor"] = None
            return None

    def _collect(self) -> tuple[Batch, bool]:
        """Return a batch of what there is, and whether that is all."""
        batch: list[tuple[str, bytes]] = []
        size = 0
        for _ in range(BATCH_ENTRIES):
            try:
                entry = self._source.read()
            except UnreadableEntryError as wrong:
                self._note_damaged(wrong)
                continue
            if entry is None:
                return self._with_losses(batch), True
            if self._is_new(entry) and not self._is_echo(entry):
                batch.append(self._message(entry))
                size += len(batch[-1][1])
            if size >= BATCH_BYTES:
                break
        return self._with_losses(batch), False

    def _is_new(self, entry: JournalEntry) -> bool:
        """Return whether *entry* has not been published yet, and take note of what is missing before it."""
        last, place = self._read, entry.cursor
        if last is not None:
            if self._gap_reason is not None and (place.is_same_entry(last) or last.is_behind(place)):
                if not last.is_behind(place):
                    # Nothing is missing before what comes next, whatever file that is in.
                    self._gap_reason = None
                return False
            missing = place.missing_since(last)
            if missing is not None:
                missing = max(0, missing - self._damaged)
            # Another source in the midst of reading is another journal file of journald's, and no sign of a loss.
            if missing or (missing is None and self._gap_reason is not None):
                self._note_missing(self._gap_reason or "vacuumed", missing)
        self._gap_reason = None
        self._damaged = 0
        self._read = place
        return True

    def _is_echo(self, entry: JournalEntry) -> bool:
        """Return whether *entry* must not be published, and count it if so."""
        if not is_echo(entry, os.getpid(), os.geteuid()):
            return False
        self.counters.echoes += 1
        return True

    def _message(self, entry: JournalEntry) -> tuple[str, bytes]:
        """Return what is published of *entry*."""
        payload, is_whole = entry.payload()
        self.counters.entries += 1
        self.counters.cut += not is_whole
        return entry.key, payload

    def _deliver(self, batch: Batch) -> None:
        """Have *batch* routed."""
        refused = self._publisher.deliver(batch)
        if refused:
            self.counters.refused += refused
            # Told with the next entry, not by itself: that would be refused too, and so on.
            self._note_loss("refused", refused)

    def _with_losses(self, batch: list[tuple[str, bytes]]) -> Batch:
        """Return *batch* with a word on each kind of loss in front. Those that need no entry to be told with go alone."""
        if not batch and not self._unreported.keys() - {"refused"}:
            return batch
        losses = [self._loss(reason, count) for reason, count in self._unreported.items()]
        self._unreported.clear()
        return losses + batch

    def _loss(self, reason: str, count: int | None) -> tuple[str, bytes]:
        """Return the message that tells a loss."""
        told = {"time": round(self._wall(), 6), "reason": reason, "count": count, **asdict(self.counters)}
        return LOST, json.dumps(told, separators=(",", ":")).encode()

    def _note_missing(self, reason: str, count: int | None) -> None:
        """Take note of entries that are gone."""
        self.counters.missing += count or 0
        self._note_loss(reason, count)
        why = "older than --backlog" if reason == "backlog" else "that are no longer in the journal"
        self._log_throttled("missing", f"skipped {'an unknown number of' if count is None else count} entries {why}")

    def _note_damaged(self, wrong: UnreadableEntryError) -> None:
        """Take note of a damaged entry."""
        self._damaged += 1
        self.counters.unreadable += 1
        self._note_loss("unreadable", 1)
        self._log_throttled("unreadable", str(wrong))

    def _note_loss(self, reason: str, count: int | None) -> None:
        """Add to what is to be told; a number that is not known stays so."""
        before = self._unreported.get(reason, 0)
        self._unreported[reason] = None if count is None or before is None else before + count

    def _log_throttled(self, throttle: str, line: str) -> None:
        """Say *line* the 1st, 10th, 100th … time: it comes back as an entry of the journal."""
        count = self._throttles[throttle].next()
        if count is not None:
            self._log(f"{line} ({count} so far)" if count > 1 else line)

    def _do_due(self, now: float) -> None:
        """Save the place and tell the status, if it is time to."""
        if now >= self._save_due:
            self.save()
            self._save_due = now + SAVE_SECONDS
        if now >= self._status_due:
            self._report_status()
            self._status_due = now + STATUS_SECONDS

    def _report_status(self) -> None:
        """Tell the service manager what was done."""
        counters = self.counters
        lost = counters.missing + counters.unreadable + counters.refused
        self._ready(f"{counters.entries} entries, {lost} lost, {counters.cut} cut, {self._publisher.reconnects} reconnects")

    def _wait(self, *, is_idle: bool) -> None:
        """Wait until the next batch may be published; if there is nothing to publish, also for something new."""
        now = self._clock()
        if not is_idle:
            # Not for the journal: it is always readable while much is written, and would make each entry a batch of its own.
            select.select([], [], [], max(0.0, self._due - now))
            return
        poll = select.poll()
        poll.register(self._source.fileno(), select.POLLIN)
        times = [] if self._routed == self._saved else [max(0.0, self._save_due - now) * 1000]
        bound = self._source.timeout_ms()
        if bound is not None:
            times.append(bound)
        poll.poll(min(times, default=None))
        self._source.process()
