"""Converts finished write-ahead files into segments, in a thread: sorting and compression must not delay the tap.

A file is removed after its segments and their index entries are durable. Converting a file again after a crash gives the same segments.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sbus.protocol.errors import SbusError
from sbus_archive.record.compaction import DAYS_PER_TURN, Merged, compact
from sbus_archive.record.index import entries_between
from sbus_archive.record.layout import OTHERS, IndexEntry
from sbus_archive.record.schema import SCHEMA, Row, RowKind, batch_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.recorder.log_messages import (
    ARCHIVE_FAILED,
    ARCHIVE_RESUMED,
    DAMAGED,
    DATE,
    NOT_MERGED,
    NOT_SHIPPED,
    REMOVED,
    REMOVED_UNSHIPPED,
)
from sbus_archive.recorder.retention import CHARGED, Retention, bytes_by_user, listed_users, user_label, with_charged
from sbus_archive.recorder.wal import WalContent, WalError, read_wal, set_aside
from sbus_archive.storage.files import RecordError, sync_folder
from sbus_archive.storage.ownership import HostTakenError
from sbus_archive.storage.store import DamagedCopyError, store_of
from sbus_programs.systemd.log_records import Log
from sbus_programs.wall_clock import Clocks, WallClock

RETRY_SECONDS = 5.0
"""Interval between attempts to write to an archive that cannot be written."""

PRUNE_SECONDS = 60.0
"""Interval between searches for expired segments while there are no new files."""

MERGE_SECONDS = 3600.0
"""Interval between searches for index entries of past days that can be merged."""


class Converter:
    """Writes segments. Add files with :meth:`submit`; stop with :meth:`close`."""

    def __init__(
        self,
        archive: Path,
        retention: Retention,
        journal: Log,
        *,
        hold: Callable[[str], None] = lambda _host: None,
        reserve_bytes: int = 0,
        clock: WallClock | None = None,
        charged: Callable[[int], int] = int,
        failed: Callable[[], None] = lambda: None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Write into *archive*, which exists. From now on *retention* and *clock* belong to this thread.

        *hold* is called with the host before each change of the archive; an error other than OSError ends the thread.
        *reserve_bytes* is room for the file that is being written. *clock* decides what is expired. *charged* returns the user whose part
        of the quota a uid uses. *failed* is called in this thread when :attr:`failure` is set.
        """
        self.segments = 0
        """Number of files that were converted."""
        self.submitted = 0
        """Number of files that were added to the queue."""
        self.finished = 0
        """Number of files that have left the queue: converted, or damaged."""
        self.problem: str | None = None
        """Why the archive cannot be written at present, or None."""
        self.failure: BaseException | None = None
        """An error, after which nothing is converted: an unexpected one, or that of *hold*."""
        self._archive = archive
        self._retention = retention
        self._journal = journal
        self._hold = hold
        self._reserve_bytes = reserve_bytes
        self._clock = clock or date_of_recorder(journal, retention)
        self._charged = charged
        self._on_failure = failed
        self._retry_seconds = retry_seconds
        self._is_held_reported = False
        self._merge_at = 0.0
        """When index entries are merged next, on the monotonic clock."""
        self._unmerged = 0
        self._unshipped = 0
        self._files: deque[tuple[Path, int, int]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="converter", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the files in the queue."""
        return self._waiting_bytes

    @property
    def largest(self) -> tuple[int, int] | None:
        """The user with the most bytes in dedicated segments, and these bytes."""
        return self._retention.largest

    @property
    def held(self) -> int:
        """Number of expired segments that are kept because they are not shipped."""
        return self._retention.held

    @property
    def is_date_doubted(self) -> bool:
        """Whether nothing is removed by the date of the wall clock, because it has jumped."""
        return self._clock.is_doubted

    def submit(self, path: Path, missing: int = 0) -> None:
        """Add a finished write-ahead file to the queue; *missing* rows before it were lost with another file."""
        size = path.stat().st_size
        with self._changed:
            self._files.append((path, size, missing))
            self.submitted += 1
            self._waiting_bytes += size
            self._changed.notify()

    def close(self, timeout: float | None = None) -> bool:
        """Convert the queued files for at most *timeout* seconds; return whether all are done. The next start converts the rest."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._files

    def _run(self) -> None:
        """Work until :meth:`close`."""
        try:
            while self._wait():
                self._work()
        except _AbandonedError:
            return
        except BaseException as error:
            self.failure = error
            self._on_failure()

    def _wait(self) -> bool:
        """Wait for a file, or for the time to search for expired segments; return False when closed."""
        with self._changed:
            if not self._files and not self._closing:
                self._changed.wait(PRUNE_SECONDS)
            return bool(self._files) or not self._closing

    def _work(self) -> None:
        """Convert the oldest queued file, if there is one, remove expired segments, and merge index entries."""
        failure: OSError | None = None
        # The second also if the disk is full: expired segments make room.
        for step in (self._convert_oldest, self._prune, self._merge):
            try:
                step()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            self._failed(failure)
            return
        if self.problem is not None:
            self.problem = None
            self._journal.record(ARCHIVE_RESUMED)

    def _convert_oldest(self) -> None:
        """Convert the oldest queued file, if there is one. Raises OSError."""
        if self._files:
            path, size, missing = self._files[0]
            self._convert(path, missing)
            with self._changed:
                self._files.popleft()
                self.finished += 1
                self._waiting_bytes -= size

    def _prune(self) -> None:
        """Remove expired segments, and log that. Raises OSError, HostTakenError."""
        self._hold(self._retention.host)
        date, before = self._clock.date(), self._clock.cutoff(self._retention.keep_ns)
        pruned = self._retention.prune(date, self._waiting_bytes + self._reserve_bytes, before_ns=before)
        for (because, uid), removed in pruned.items():
            self._journal.record(REMOVED, because=because, whose=user_label(uid), segments=removed.segments, bytes=removed.bytes)
        retention = self._retention
        if retention.unshipped.segments > self._unshipped:
            self._unshipped = retention.unshipped.segments
            self._journal.record(REMOVED_UNSHIPPED, segments=self._unshipped, bytes=retention.unshipped.bytes)
        if retention.held and not self._is_held_reported:
            self._journal.record(NOT_SHIPPED, segments=retention.held, reason=retention.held_because)
        self._is_held_reported = bool(retention.held)

    def _merge(self) -> None:
        """Merge the index entries of some past days. Raises OSError, HostTakenError.

        Not while files are waiting: their conversion looks for single entries of an interrupted one.
        """
        if self._files or time.monotonic() < self._merge_at:
            return
        self._hold(self._retention.host)
        self._merge_at = time.monotonic() + MERGE_SECONDS
        try:
            merged = compact(store_of(self._archive), self._retention.host, self._clock.date(), may_merge=self._retention.is_shipped)
        except (RecordError, DamagedCopyError) as error:
            merged = Merged(unreadable=1, error=str(error))
        if merged.unreadable > self._unmerged:
            self._journal.record(NOT_MERGED, count=merged.unreadable, reason=merged.error)
        self._unmerged = merged.unreadable
        if merged.days == DAYS_PER_TURN:
            self._merge_at = 0.0

    def _failed(self, error: OSError) -> None:
        """Log once that the archive cannot be written, and wait for the retry. Raises _AbandonedError when closed."""
        is_known, self.problem = self.problem is not None, str(error)
        if not is_known:
            self._journal.record(ARCHIVE_FAILED, reason=self.problem)
        with self._changed:
            if self._closing:
                raise _AbandonedError
            self._changed.wait(self._retry_seconds)

    def _convert(self, path: Path, missing: int) -> None:
        """Write the segments of one file, and remove the file. Raises OSError, HostTakenError."""
        try:
            content = read_wal(path)
            content.missing_before = missing
        except FileNotFoundError:
            return
        except (WalError, pa.ArrowException) as error:
            reason = error.reason if isinstance(error, WalError) else str(error)
            self._journal.record(DAMAGED, file=str(path), reason=f"{reason}; renamed to {set_aside(path).name}")
            return
        try:
            self._hold(content.host)
        except HostTakenError as error:
            if content.host == self._retention.host:
                raise
            # Written under an earlier name of this host. Its segments would replace those of the other host.
            self._journal.record(DAMAGED, file=str(path), reason=f"{error}; renamed to {set_aside(path).name}")
            return
        if content.damaged_frames:
            self._journal.record(DAMAGED, file=str(path), reason=f"frames with a wrong checksum: {content.damaged_frames}")
        rows = with_charged(_table(content), self._charged)
        made = entries_between(self._archive, content.host, content.first_seq, content.last_seq)
        rows, done = _without_dedicated(self._archive, rows, made)
        entries = convert(self._archive, content, self._separate_users(rows, made, done), rows=rows, made=made, done=done)
        self._retention.add(entries)
        for entry in entries:
            self._clock.message(entry.max_ts)
        self.segments += 1
        path.unlink()
        sync_folder(path.parent)

    def _separate_users(self, rows: pa.Table, made: Sequence[IndexEntry], done: Sequence[IndexEntry]) -> frozenset[int]:
        """Return the users whose *rows* get dedicated segments, including OTHERS if there are too many users to list.

        The segments *made* by an interrupted conversion decide, so that no row is written twice: the common segments are written last. If
        one exists, all dedicated segments exist, and those that are not *done* are written again.
        """
        again = frozenset(entry.uid for entry in made if entry.uid is not None and entry not in done)
        if any(entry.uid is None for entry in made):
            return again
        sizes = bytes_by_user(rows)
        known = listed_users(sizes)
        return again | self._retention.separate_users(known) | ({OTHERS} if len(known) < len(sizes) else set())


def date_of_recorder(journal: Log, retention: Retention, *, kept: Path | None = None, clocks: Clocks | None = None) -> WallClock:
    """Return the date by which the segments of *retention* expire; *kept* is the file in which it survives a restart."""

    def note(line: str) -> None:
        journal.record(DATE, reason=line)

    return WallClock(note, newest=retention.newest_ns or None, kept=kept, clocks=clocks)


class _AbandonedError(SbusError):
    """The converter was closed while the archive could not be written."""


def convert(
    archive: Path,
    content: WalContent,
    separate_users: frozenset[int] = frozenset(),
    *,
    rows: pa.Table | None = None,
    made: Sequence[IndexEntry] = (),
    done: Sequence[IndexEntry] = (),
) -> list[IndexEntry]:
    """Write the segments of *content*: first those of each of *separate_users*, then the common ones; return their index entries.

    *rows* are those that are not in segments yet, with the users that are charged; by default all, and each uid is charged. *made* are the
    entries of an interrupted conversion, and *done* those of them that are not written again.

    Raises:
        OSError: the archive cannot be written.
    """
    rows = with_charged(_table(content), int) if rows is None else rows
    known = separate_users | listed_users(bytes_by_user(rows)).keys()
    first = next((entry.name.first_seq for entry in made if entry.uid is None), content.first_seq)
    if first in {entry.name.first_seq for entry in done}:
        first = pc.min(rows.column("seq")).as_py() or first
    entries = list(done)
    for uid in sorted(separate_users):
        is_own = _is_of_others(rows, known) if uid == OTHERS else pc.fill_null(pc.equal(rows.column(CHARGED), uid), False)
        own, rows = rows.filter(is_own), rows.filter(pc.invert(is_own))
        last = pc.max(own.column("seq")).as_py()
        if last is None:
            continue
        # The last row gives the name, because the first row gives the name of the common segment, except where it is the only row.
        users, unnamed = _entry_sizes(own, uid)
        entries += write_segments(archive, content.host, last, own, uid=uid, users=users, unnamed=unnamed)
        if last == first:
            first = pc.min(rows.column("seq")).as_py() or first
    users, unnamed = _entry_sizes(rows, None)
    return entries + write_segments(archive, content.host, first, rows, users=users, unnamed=unnamed)


def _entry_sizes(rows: pa.Table, uid: int | None) -> tuple[dict[int, int], int]:
    """Return the sizes for the index entry of *rows* in segments of *uid*: bytes of the listed users, and bytes of all others."""
    sizes = bytes_by_user(rows)
    users = {} if uid == OTHERS else listed_users(sizes)
    return users, sizes.total() - sum(users.values())


def _is_of_others(rows: pa.Table, known: Set[int]) -> pa.ChunkedArray:
    """Return for each row whether it belongs to a user that is not in *known*."""
    uids = rows.column(CHARGED)
    return pc.and_(pc.is_valid(uids), pc.invert(pc.is_in(uids, pa.array(sorted(known - {OTHERS}), uids.type))))


def _without_dedicated(archive: Path, rows: pa.Table, made: Sequence[IndexEntry]) -> tuple[pa.Table, list[IndexEntry]]:
    """Return *rows* without those in the dedicated segments of an interrupted conversion, and the entries of these segments.

    The user that is charged for a row may have changed since then, so these segments themselves say which rows they have.
    """
    reader, done = RecordReader(archive), []
    for entry in made:
        if entry.uid is not None:
            with contextlib.suppress(RecordError):  # removed meanwhile, or damaged: it is written again
                there = pc.is_in(rows.column("seq"), reader.read(entry, ["seq"]).column("seq").combine_chunks())
                rows = rows.filter(pc.invert(there))
                done.append(entry)
    return rows, done


def _table(content: WalContent) -> pa.Table:
    """Return the rows of *content*, and a ``gap`` row for each damaged range."""
    batches = list(content.batches)
    for seq, lost in content.missing_ranges():
        ts = _ts_before(content, seq)
        batches.append(batch_of([Row(ts, seq, RowKind.GAP, lost=lost, reason="the write-ahead log was damaged")]))
    return pa.Table.from_batches(batches, schema=SCHEMA)


def _ts_before(content: WalContent, seq: int) -> int:
    """Return the time of the last row before position *seq*, or of the first row."""
    ts = int(content.batches[0].column("ts")[0].as_py())
    for batch in content.batches:
        if batch.column("seq")[0].as_py() > seq:
            break
        ts = int(batch.column("ts")[batch.num_rows - 1].as_py())
    return ts
