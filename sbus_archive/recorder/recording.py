"""Writes rows to the write-ahead log in batches; each batch is durable within a fraction of a second.

A new file begins by hour, time, rows or size. Nothing here waits for the disk: while it cannot be written, rows are counted and dropped.
The next row in the record is a ``gap`` with their number. The record of each hour begins with the active subscriptions, sbus-record(5).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sbus_archive.record.layout import HOUR_NS, hour_of
from sbus_archive.record.schema import Row, RowKind, batch_of
from sbus_archive.recorder.log_messages import RESUMED, SUSPENDED
from sbus_archive.recorder.wal import WalWriter
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.systemd.log_records import Log

MAX_BATCH_BYTES = 4 << 20
"""Bytes of payloads in memory after which a batch is written before the sync interval ends."""

RETRY_SECONDS = 1.0
"""Interval between attempts to write to a disk that cannot be written."""

_ROW_BYTES = 256
"""Estimated bytes of a row without its payload."""

MAX_PATTERNS = 200_000
"""Maximum number of subscriptions. Each is a row in every hour, and uses a few hundred bytes of memory."""


@dataclass(slots=True)
class _Outage:
    """A period in which nothing can be written."""

    since_ns: int
    reason: str
    retry_at: float
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks, which tests replace: nanoseconds since 1970 and since the boot, and monotonic seconds."""

    wall_ns: Callable[[], int] = time.time_ns
    monotonic: Callable[[], float] = time.monotonic
    boot_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Recording:
    """Writes the rows of one host. Call :meth:`tick` at the time :attr:`due`, and :meth:`close` at the end."""

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

        *finished* is called with each complete file, *durable* with the position of the last durable row. *refusal* is called with the
        bytes of the
        current file, and returns the reason if nothing more may be written.
        """
        self.recorded = 0
        """Number of durable rows."""
        self.lost = 0
        """Number of rows that were dropped because nothing could be written."""
        self.files = 0
        """Number of files that were finished."""
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
        self.hour = hour_of(self._clocks.wall_ns())
        """The hour that is recorded now: its start."""
        self._outage: _Outage | None = None

    @property
    def is_suspended(self) -> bool:
        """Whether nothing can be written at present."""
        return self._outage is not None

    @property
    def outage(self) -> str | None:
        """Why nothing can be written at present, or None."""
        return None if self._outage is None else self._outage.reason

    @property
    def due(self) -> float | None:
        """Monotonic time of the next call of :meth:`tick`; None: after the next row."""
        if self._outage is not None:
            return self._outage.retry_at
        times = []
        if self._rows:
            times.append(self._oldest + self._settings.sync_interval)
        if self._wal is not None:
            left = (self.hour + HOUR_NS - self._clocks.wall_ns()) / 1e9
            times += [self._wal_begun + self._settings.rotate_interval, self._clocks.monotonic() + max(0.0, left)]
        return min(times, default=None)

    def add(self, row: Row) -> None:
        """Add one row; its ``seq`` is set when it is written. A row of a later hour ends the file of the earlier hour."""
        if self._outage is not None:
            self._outage.lost += 1
            self.lost += 1
            return
        if row.ts >= self.hour + HOUR_NS:
            self._turn_hour(hour_of(row.ts))
        if not self._rows:
            self._oldest = self._clocks.monotonic()
        self._rows.append(row)
        self._bytes += _ROW_BYTES + len(row.payload or b"")
        if len(self._rows) >= self._settings.sync_rows or self._bytes >= MAX_BATCH_BYTES:
            self.flush()

    def tick(self) -> None:
        """Do the work that is due."""
        now = self._clocks.monotonic()
        if self._outage is not None:
            if now >= self._outage.retry_at:
                self._resume(self._outage)
            return
        if self._rows and now >= self._oldest + self._settings.sync_interval:
            self.flush()
        wall = self._clocks.wall_ns()
        # A clock that was set back by years begins its hour again; rows near the end of an hour are not in order.
        if not self.hour - HOUR_NS <= wall < self.hour + HOUR_NS:
            self._turn_hour(hour_of(wall))
        elif self._wal is not None and now >= self._wal_begun + self._settings.rotate_interval:
            self.rotate()

    def flush(self) -> None:
        """Write the pending rows. On return they are durable, or counted as lost."""
        rows, self._rows, self._bytes = self._rows, [], 0
        if rows and not self._write(rows):
            self._count_lost(len(rows))

    def rotate(self) -> int:
        """Write the pending rows, and end the file; return the number of its rows."""
        self.flush()
        return self._end_file()

    def close(self) -> None:
        """Write the pending rows, end the file, and stop."""
        if self._outage is not None:
            self._resume(self._outage)
        self.rotate()

    def _turn_hour(self, hour: int) -> None:
        """End the file of the previous hour: a segment contains one hour."""
        self.rotate()
        self.hour = hour

    def _write(self, rows: list[Row]) -> bool:
        """Write *rows* as one batch; return whether they are durable. If not, recording is suspended."""
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
        """Create a file. Raises OSError."""
        self._wal = WalWriter.create(self._spool, self._host, self._next_seq)
        self._wal_begun = self._clocks.monotonic()
        return self._wal

    def _end_file(self) -> int:
        """End the current file, if there is one, and pass it on; return the number of its rows."""
        wal, self._wal = self._wal, None
        if wal is None:
            return 0
        self.files += 1
        wal.close()
        if wal.rows:
            self._finished(wal.path)
        else:
            # An empty file does no harm: the next start removes it.
            with contextlib.suppress(OSError):
                wal.path.unlink(missing_ok=True)
        return wal.rows

    def _suspend(self, reason: str) -> None:
        """Suspend recording, and log it once. The current file is passed on, because its conversion may free space."""
        if self._outage is None:
            self._outage = _Outage(self._clocks.wall_ns(), reason, 0.0)
            self._journal.record(SUSPENDED, reason=reason)
        self._outage.retry_at = self._clocks.monotonic() + RETRY_SECONDS
        self._end_file()

    def _count_lost(self, count: int) -> None:
        """Count dropped rows."""
        self.lost += count
        if self._outage is not None:
            self._outage.lost += count

    def _resume(self, outage: _Outage) -> None:
        """Try to write again, first the ``gap`` row."""
        now = self._clocks.wall_ns()
        gap = Row(now, 0, RowKind.GAP, reason=outage.reason, lost=outage.lost, duration=max(0, now - outage.since_ns))
        if self._write([gap]):
            self._outage = None
            self._journal.record(RESUMED, lost=outage.lost)


class SubscriptionSnapshot:
    """Patterns by connection. ``forgotten`` counts subscriptions beyond the maximum; the record does not identify their recipients."""

    def __init__(self, most: int = MAX_PATTERNS) -> None:
        """Keep up to *most* subscriptions."""
        self.forgotten = 0
        self._most = most
        self._count = 0
        self._patterns: dict[int, dict[str, Row]] = {}

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return self._count

    def note(self, row: Row) -> None:
        """Apply *row* if it is about a subscription."""
        if row.conn is None:
            return
        if row.kind == RowKind.DISCONNECT:
            self._count -= len(self._patterns.pop(row.conn, ()))
        elif row.key is None:
            return
        elif row.kind in {RowKind.SUBSCRIBE, RowKind.SNAPSHOT}:
            self._add(row.conn, row.key, row)
        elif row.kind == RowKind.UNSUBSCRIBE and (held := self._patterns.get(row.conn)) and held.pop(row.key, None) is not None:
            self._count -= 1

    def knows(self, row: Row) -> bool:
        """Return whether the subscription of *row* is known."""
        return row.conn is not None and row.key in self._patterns.get(row.conn, ())

    def rows(self, ts: int) -> Iterator[Row]:
        """Yield a row with the time *ts* for each subscription."""
        for held in self._patterns.values():
            for row in held.values():
                yield row._replace(kind=RowKind.SNAPSHOT, ts=ts)

    def clear(self) -> None:
        """Forget all: they may have ended."""
        self._patterns.clear()
        self._count = 0

    def _add(self, conn: int, pattern: str, row: Row) -> None:
        """Add one subscription, if there is room."""
        held = self._patterns.setdefault(conn, {})
        if pattern in held:
            return
        if self._count >= self._most:
            self.forgotten += 1
            return
        held[pattern] = row
        self._count += 1
