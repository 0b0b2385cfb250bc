"""Finished files of the write-ahead into segments, by a thread of its own: sorting and compressing must not hold up the listening.

A file goes only when its segments and their index entries are durable. Whatever interrupts, the same file makes the same segments.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Set
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.record.index import OTHERS, IndexEntry, entries_between, sync_folder
from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.schema import SCHEMA, Row, batch_of
from sbusd.archive.record.segments import write_segments
from sbusd.protocol.errors import SbusError
from sbusd.recorder.log_messages import ARCHIVE_AGAIN, ARCHIVE_FAILED, DAMAGED, REMOVED
from sbusd.recorder.retention import Retention
from sbusd.recorder.shares import bytes_by_user, name_of, named
from sbusd.recorder.wal import WalContent, WalError, read_wal, set_aside
from sbusd.systemd.service_log import Log

RETRY_SECONDS = 5.0
"""How often an archive that could not be written is tried again."""

PRUNE_SECONDS = 60.0
"""How often old segments are looked for while nothing new comes."""


class Converter:
    """Makes segments. Give it files with :meth:`submit`, and end it with :meth:`close`."""

    def __init__(
        self,
        archive: Path,
        retention: Retention,
        journal: Log,
        *,
        reserve_bytes: int = 0,
        wall_ns: Callable[[], int] = time.time_ns,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Write into *archive*, which exists, and keep to *retention*, which is this thread's from now on.

        *reserve_bytes* is room for the file that is being written.
        """
        self.segments = 0
        """Segments that were written."""
        self.failure: BaseException | None = None
        """An error of the recorder itself, after which nothing is converted any more."""
        self._archive = archive
        self._retention = retention
        self._journal = journal
        self._reserve_bytes = reserve_bytes
        self._wall_ns = wall_ns
        self._retry_seconds = retry_seconds
        self._files: deque[tuple[Path, int]] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="converter", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the files that wait."""
        return self._waiting_bytes

    @property
    def largest(self) -> tuple[int, int] | None:
        """The user who has most in segments of their own, and their bytes."""
        return self._retention.largest

    def submit(self, path: Path) -> None:
        """Take a finished file of the write-ahead."""
        size = path.stat().st_size
        with self._changed:
            self._files.append((path, size))
            self._waiting_bytes += size
            self._changed.notify()

    def close(self, timeout: float | None = None) -> bool:
        """Convert what waits, for at most *timeout* seconds; return whether all is done. What is left is for the next start."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._files

    def _run(self) -> None:
        """Work until the end."""
        try:
            while self._wait():
                self._work()
        except _GivenUpError:
            return
        except BaseException as error:
            self.failure = error

    def _wait(self) -> bool:
        """Wait for work or the time to look for old segments; return False at the end."""
        with self._changed:
            if not self._files and not self._closing:
                self._changed.wait(PRUNE_SECONDS)
            return bool(self._files) or not self._closing

    def _work(self) -> None:
        """Convert the oldest file that waits, if there is one, and remove what is too old."""
        try:
            if self._files:
                path, size = self._files[0]
                self._convert(path)
                with self._changed:
                    self._files.popleft()
                    self._waiting_bytes -= size
            for (because, uid), removed in self._retention.prune(self._wall_ns(), self._waiting_bytes + self._reserve_bytes).items():
                self._journal.record(REMOVED, because=because, whose=name_of(uid), segments=removed.segments, bytes=removed.bytes)
        except OSError as error:
            self._failed(error)
            return
        if self._is_failing:
            self._is_failing = False
            self._journal.record(ARCHIVE_AGAIN)

    def _failed(self, error: OSError) -> None:
        """Say once that the archive cannot be written, and wait a little; at the end, give up instead."""
        if not self._is_failing:
            self._is_failing = True
            self._journal.record(ARCHIVE_FAILED, reason=str(error))
        with self._changed:
            if self._closing:
                raise _GivenUpError
            self._changed.wait(self._retry_seconds)

    def _convert(self, path: Path) -> None:
        """Make the segments of one file, and remove it. Raises OSError."""
        try:
            content = read_wal(path)
        except FileNotFoundError:
            return
        except (WalError, pa.ArrowException) as error:
            reason = error.reason if isinstance(error, WalError) else str(error)
            self._journal.record(DAMAGED, file=str(path), reason=f"{reason}; renamed to {set_aside(path).name}")
            return
        if content.damaged_frames:
            self._journal.record(DAMAGED, file=str(path), reason=f"frames with a wrong checksum: {content.damaged_frames}")
        self._retention.add(convert(self._archive, content, self._owners(content)))
        self.segments += 1
        path.unlink()
        sync_folder(path.parent)

    def _owners(self, content: WalContent) -> frozenset[int]:
        """Return the users of one file whose rows get segments of their own, among them OTHERS if there are too many to name all.

        What an interrupted try has made decides: the common segments are written last, so where there is one, all others are there, and
        where there is none, no row of a further user is in it. Else rows would be there twice. Raises OSError.
        """
        made = entries_between(self._archive, content.host, content.first_seq, content.last_seq)
        owners = frozenset(entry.uid for entry in made if entry.uid is not None)
        if any(entry.uid is None for entry in made):
            return owners
        sizes = bytes_by_user(_table(content))
        known = named(sizes)
        return owners | self._retention.owners(known) | ({OTHERS} if len(known) < len(sizes) else set())


class _GivenUpError(SbusError):
    """The end came while the archive could not be written."""


def convert(archive: Path, content: WalContent, owners: frozenset[int] = frozenset()) -> list[IndexEntry]:
    """Write the segments of *content* into *archive*, first those of each of *owners*, then the common ones; return their entries.

    Raises:
        OSError: the archive cannot be written.
    """
    rows, first = _table(content), content.first_seq
    known = owners | named(bytes_by_user(rows)).keys()
    entries = []
    for uid in sorted(owners):
        is_own = _is_of_others(rows, known) if uid == OTHERS else pc.fill_null(pc.equal(rows.column("uid"), uid), False)
        own, rows = rows.filter(is_own), rows.filter(pc.invert(is_own))
        last = pc.max(own.column("seq")).as_py()
        if last is None:
            continue
        # Named by its last row, for the first one's name is that of the common segment, but where that row is all there is.
        users, unnamed = _shares(own, uid)
        entries += write_segments(archive, content.host, last, own, uid=uid, users=users, unnamed=unnamed)
        if last == first:
            first = pc.min(rows.column("seq")).as_py() or first
    users, unnamed = _shares(rows, None)
    return entries + write_segments(archive, content.host, first, rows, users=users, unnamed=unnamed)


def _shares(rows: pa.Table, uid: int | None) -> tuple[dict[int, int], int]:
    """Return what the entry of segments of *uid* says of their *rows*: the bytes of users by name, and those of all others."""
    sizes = bytes_by_user(rows)
    users = {} if uid == OTHERS else named(sizes)
    return users, sizes.total() - sum(users.values())


def _is_of_others(rows: pa.Table, known: Set[int]) -> pa.ChunkedArray:
    """Return for each of *rows* whether it is of a user, and of none that is *known*."""
    uids = rows.column("uid")
    return pc.and_(pc.is_valid(uids), pc.invert(pc.is_in(uids, pa.array(sorted(known - {OTHERS}), uids.type))))


def _table(content: WalContent) -> pa.Table:
    """Return the rows of *content*, with one for each damaged stretch."""
    batches = list(content.batches)
    for seq, lost in content.holes():
        ts = _ts_before(content, seq)
        batches.append(batch_of([Row(ts, seq, Kind.GAP, lost=lost, reason="the write-ahead log was damaged")]))
    return pa.Table.from_batches(batches, schema=SCHEMA)


def _ts_before(content: WalContent, seq: int) -> int:
    """Return the time of the last row before the position *seq*, or of the first row there is."""
    ts = int(content.batches[0].column("ts")[0].as_py())
    for batch in content.batches:
        if batch.column("seq")[0].as_py() > seq:
            break
        ts = int(batch.column("ts")[batch.num_rows - 1].as_py())
    return ts
