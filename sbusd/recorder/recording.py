"""Rows into the write-ahead: in batches, each durable within a fraction of a second; a new file by hour, time, rows and size.

Whatever the disk does, nothing here waits for it to get better: while it cannot be written, rows are counted instead of kept, and what
comes next in the record is a row that tells their number (``gap``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.layout import HOUR_NS, hour_of
from sbusd.archive.record.schema import Row, batch_of
from sbusd.config.recorder import RecorderSettings
from sbusd.recorder.log_messages import RESUMED, SUSPENDED
from sbusd.recorder.wal import WalWriter
from sbusd.systemd.service_log import Log

MAX_BATCH_BYTES = 4 << 20
"""Payloads that wait in memory before they are written sooner than the interval says."""

RETRY_SECONDS = 1.0
"""How often a disk that could not be written is tried again."""

_ROW_BYTES = 256
"""What a row takes besides its payload, about."""


@dataclass(slots=True)
class _Outage:
    """A time in which nothing can be written."""

    since_ns: int
    reason: str
    retry_at: float
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Clocks:
    """The two clocks, which tests replace: nanoseconds since 1970, and seconds that only rise."""

    wall_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic


class Recording:
    """The rows of one host on their way to the disk. Call :meth:`tick` when :attr:`due` has come, and :meth:`close` at the end."""

    def __init__(
        self,
        settings: RecorderSettings,
        host: str,
        next_seq: int,
        journal: Log,
        finished: Callable[[Path], None],
        *,
        durable: Callable[[int], None] = lambda _seq: None,
        refusal: Callable[[int], str | None] = lambda _bytes: None,
        clocks: Clocks | None = None,
    ) -> None:
        """Record into ``settings.spool``, which exists.

        *finished* is given each file that is complete, *durable* the position up to which rows are on the disk; *refusal* says why
        nothing more may be written though it could, given the bytes of the file that is being written.
        """
        self.recorded = 0
        """Rows that are durable."""
        self.lost = 0
        """Rows that were not kept because nothing could be written."""
        self.files = 0
        """Files that were ended."""
        self._settings = settings
        self._host = host
        self._next_seq = next_seq
        self._journal = journal
        self._finished = finished
        self._durable = durable
        self._refusal = refusal
        self._clocks = clocks or Clocks()
        self._spool = Path(settings.spool)
        self._rows: list[Row] = []
        self._bytes = 0
        self._oldest = 0.0
        self._wal: WalWriter | None = None
        self._wal_begun = 0.0
        self._hour = hour_of(self._clocks.wall_ns())
        self._outage: _Outage | None = None

    @property
    def is_suspended(self) -> bool:
        """Whether nothing can be written just now."""
        return self._outage is not None

    @property
    def due(self) -> float | None:
        """When :meth:`tick` is to be called next, by the monotonic clock; None: not before another row has come."""
        if self._outage is not None:
            return self._outage.retry_at
        times = []
        if self._rows:
            times.append(self._oldest + self._settings.sync_interval)
        if self._wal is not None:
            left = (self._hour + HOUR_NS - self._clocks.wall_ns()) / 1e9
            times += [self._wal_begun + self._settings.rotate_interval, self._clocks.monotonic() + max(0.0, left)]
        return min(times, default=None)

    def add(self, row: Row) -> None:
        """Take one row; its ``seq`` is given when it is written. The row of a later hour ends the file of the earlier."""
        if self._outage is not None:
            self._outage.lost += 1
            self.lost += 1
            return
        if row.ts >= self._hour + HOUR_NS:
            self._turn_hour(hour_of(row.ts))
        if not self._rows:
            self._oldest = self._clocks.monotonic()
        self._rows.append(row)
        self._bytes += _ROW_BYTES + len(row.payload or b"")
        if len(self._rows) >= self._settings.sync_rows or self._bytes >= MAX_BATCH_BYTES:
            self.flush()

    def tick(self) -> None:
        """Do what is due."""
        now = self._clocks.monotonic()
        if self._outage is not None:
            if now >= self._outage.retry_at:
                self._resume(self._outage)
            return
        if self._rows and now >= self._oldest + self._settings.sync_interval:
            self.flush()
        wall = self._clocks.wall_ns()
        if wall >= self._hour + HOUR_NS:
            self._turn_hour(hour_of(wall))
        elif self._wal is not None and now >= self._wal_begun + self._settings.rotate_interval:
            self.rotate()

    def flush(self) -> None:
        """Write what waits; it is durable on return, or counted as lost."""
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows and not self._write(rows):
            self._count_lost(len(rows))

    def rotate(self) -> None:
        """Write what waits, and end the file."""
        self.flush()
        self._end_file()

    def close(self) -> None:
        """End the recording: what waits is written, and the file ended."""
        if self._outage is not None:
            self._resume(self._outage)
        self.rotate()

    def _turn_hour(self, hour: int) -> None:
        """End the file of the hour that is over: a segment is of one hour."""
        self.rotate()
        self._hour = hour

    def _write(self, rows: list[Row]) -> bool:
        """Write *rows* as one batch; return whether they are durable. If not, the recording is suspended."""
        try:
            wal = self._wal or self._begin()
            if (reason := self._refusal(wal.size)) is not None:
                self._suspend(reason)
                return False
            wal.append(batch_of(rows, self._next_seq))
        except OSError as error:
            self._suspend(error.strerror or str(error))
            return False
        self._next_seq += len(rows)
        self.recorded += len(rows)
        self._durable(self._next_seq - 1)
        if wal.rows >= self._settings.rotate_rows or wal.size >= self._settings.rotate_bytes:
            self.rotate()
        return True

    def _begin(self) -> WalWriter:
        """Begin a file. Raises OSError."""
        self._wal = WalWriter.create(self._spool, self._host, self._next_seq)
        self._wal_begun = self._clocks.monotonic()
        return self._wal

    def _end_file(self) -> None:
        """End the file that is being written, if there is one, and hand it on."""
        wal, self._wal = self._wal, None
        if wal is None:
            return
        self.files += 1
        wal.close()
        if wal.rows:
            self._finished(wal.path)
        else:
            # An empty one does no harm: the next start removes it.
            with contextlib.suppress(OSError):
                wal.path.unlink(missing_ok=True)

    def _suspend(self, reason: str) -> None:
        """Note that nothing can be written, and say so once. What has been written is handed on: to convert it may make room."""
        if self._outage is None:
            self._outage = _Outage(self._clocks.wall_ns(), reason, 0.0)
            self._journal.record(SUSPENDED, reason=reason)
        self._outage.retry_at = self._clocks.monotonic() + RETRY_SECONDS
        self._end_file()

    def _count_lost(self, count: int) -> None:
        """Count rows that were not kept."""
        self.lost += count
        if self._outage is not None:
            self._outage.lost += count

    def _resume(self, outage: _Outage) -> None:
        """Try to write again: first what is missing."""
        now = self._clocks.wall_ns()
        gap = Row(now, 0, Kind.GAP, reason=outage.reason, lost=outage.lost, duration=max(0, now - outage.since_ns))
        if self._write([gap]):
            self._outage = None
            self._journal.record(RESUMED, lost=outage.lost)
