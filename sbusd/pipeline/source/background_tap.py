"""Taps the live bus in the background, into a bounded buffer. Each streaming query has one, in its driver."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from queue import Queue

from sbusd.archive.record.key_text import key_text
from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.schema import Row
from sbusd.client.errors import RemoteRefusal, TimedOut
from sbusd.client.messages import Gap, Reconnected
from sbusd.client.sync.bus import Bus
from sbusd.client.sync.streams import Tap
from sbusd.client.tap import TapItem
from sbusd.pipeline.errors import SourceError
from sbusd.protocol.errors import SbusError

MOST_ROWS = 200_000
"""Rows in the buffer: two batches of the default size, because a batch is kept until Spark has begun the next one."""

MOST_BYTES = 128 << 20
"""Bytes of payloads in the buffer. If either limit is reached, nothing is read, and the bus counts what it discards."""

_WAIT_SECONDS = 0.2
"""Interval between checks for :meth:`BackgroundTap.stop`."""

_CONNECT_SECONDS = 30.0

_SHORT = frozenset({"recipients", "queued", "discarded"})
"""Columns of 32 bits."""


class BackgroundTap:
    """Taps the bus at ``address`` for keys that match a pattern; rows are numbered from 0.

    Call :meth:`start` first. Rows are kept until :meth:`drop`.
    """

    def __init__(self, address: str | None, pattern: bytes) -> None:
        self._address = address
        self._pattern = pattern
        self._rows: deque[Row] = deque()
        self._first = 0
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._defect: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sbus-listener", daemon=True)
        self._begun: Queue[Exception | None] = Queue()

    def start(self) -> None:
        """Connect, and open the tap; no message is missed after the return.

        Raises:
            SourceError: this user may not tap the bus.
            SbusError: there is no bus.
        """
        self._thread.start()
        if (defect := self._begun.get()) is not None:
            raise defect

    @property
    def end(self) -> int:
        """The number of the next row. Raises the error that ended the connection."""
        with self._changed:
            if self._defect is not None and not self._rows:
                raise self._defect
            return self._first + len(self._rows)

    def rows(self, first: int, last: int) -> list[Row]:
        """Return the rows from *first* to *last* (exclusive), which have not been dropped."""
        with self._changed:
            if not self._first <= first <= last <= self._first + len(self._rows):
                raise SourceError(f"rows {first} to {last} are gone: the live bus cannot be read again")
            return [self._rows[number - self._first] for number in range(first, last)]

    def drop(self, end: int) -> None:
        """Drop the rows before *end*: they will not be needed again."""
        with self._changed:
            while self._rows and self._first < end:
                self._bytes -= len(self._rows.popleft().payload or b"")
                self._first += 1
            self._changed.notify()

    def stop(self) -> None:
        """Close the connection. It can be called again."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_CONNECT_SECONDS)

    def _run(self) -> None:
        """Tap until :meth:`stop`; store an error for the next call."""
        try:
            with Bus.connect(self._address, timeout=_CONNECT_SECONDS, reconnect=True) as bus, bus.tap(self._pattern) as tap:
                self._begun.put(None)
                self._listen(tap)
        except RemoteRefusal as error:
            self._fail(SourceError(f"cannot tap the bus: {error.said}. Allow this user with tap under [rights] in sbusd.toml(5)"))
        except (SbusError, OSError) as error:
            self._fail(error)

    def _listen(self, tap: Tap) -> None:
        """Receive rows while there is room."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._has_room())
                if self._ended:
                    return
            try:
                item = tap.receive(timeout=_WAIT_SECONDS)
            except TimedOut:
                continue
            with self._changed:
                row = row_of(item, self._first + len(self._rows))
                self._rows.append(row)
                self._bytes += len(row.payload or b"")

    def _has_room(self) -> bool:
        """Return whether there is room for another row."""
        return len(self._rows) < MOST_ROWS and self._bytes < MOST_BYTES

    def _fail(self, defect: Exception) -> None:
        """Store *defect* for :meth:`start`, or for the next call."""
        with self._changed:
            self._defect = defect
        self._begun.put(defect)


def row_of(item: TapItem, seq: int) -> Row:
    """Return an item of the tap as a row of the record at position *seq*. Only the recorder knows units and calls."""
    if isinstance(item, Gap):
        return Row(time.time_ns(), seq, Kind.TAP_LOSS.value, lost=item.lost or None, reason="the query is too slow")
    if isinstance(item, Reconnected):
        return Row(time.time_ns(), seq, Kind.RESTART.value, duration=int(item.seconds * 1e9))
    fields, peer = item.fields, item.peer
    row = Row(_whole(fields, "time") or 0, seq, item.kind, key=None if item.key is None else key_text(item.key))
    if peer is not None:
        row = row._replace(conn=peer.connection, uid=peer.uid, gid=peer.gid, pid=peer.pid)
    if item.message is not None:
        recipients, queued, discarded = (_whole(fields, name) for name in ("recipients", "queued", "discarded"))
        payload = item.message.payload
        row = row._replace(recipients=recipients, queued=queued, discarded=discarded, missed=_numbers(fields, "missed"))
        return row._replace(payload=payload, payload_bytes=len(payload))
    lost = _whole(fields, "count")
    if lost is None and item.kind == Kind.DENIAL:
        lost = 1
    return row._replace(code=_words(fields, "error"), reason=_words(fields, "reason"), packet=_words(fields, "packet"), lost=lost)


def _whole(fields: Mapping[str, object], name: str) -> int | None:
    """Return an integer that fits the column, None if there is none."""
    value = fields.get(name)
    return value if type(value) is int and 0 <= value < 1 << (31 if name in _SHORT else 63) else None


def _numbers(fields: Mapping[str, object], name: str) -> list[int] | None:
    """Return a list of integers that fit the column, None if there is none."""
    value = fields.get(name)
    return value if isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 63 for each in value) else None


def _words(fields: Mapping[str, object], name: str) -> str | None:
    """Return text that fits the column, None if there is none."""
    value = fields.get(name)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else None
