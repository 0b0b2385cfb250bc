"""The beginning of a run, and numbers that never go back: a reader learns if a stream was lost or replaced by an older copy.

A second, small file of the store is synced. It has, for each stream a number up to which messages were acknowledged, and one that
no message has exceeded. If the file has less, because it or its log was damaged, removed or replaced, the stream continues above, after a
gap. Each start of the store is a *run* with a random number, and the file has the numbers of all streams at the beginning of each run. So
a number that was valid in a run of another file, or of a part of this one that is gone, is recognized.

A third file has what was acknowledged since the second one was synced. It is not synced: only a power cut can lose it. It has a record of
a fixed size for each stream: a checksum, the number and the name. So a commit writes only the records of the streams that it has changed.
Nothing depends on this file: without it, the loss of the newest messages is less certain to be noticed.

The beginning of a run is written into the file of the store before anything else. On a full disk it cannot be written. Then the file is
only read, and all changes are refused, until there is room.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from sbus_programs.config.store import MAX_NAME_BYTES
from sbus_services.store.engine.clocks import KeptClock, StoreClock
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.messages import EngineError

_RECORD = struct.Struct(f"<IQ{MAX_NAME_BYTES}s")

_MAX_BYTES = _RECORD.size << 14
"""Bytes of the file that are read: a longer one was written by something else."""


class AcknowledgedNumbers:
    """The file *path*, which is created when a number is noted. Errors of the disk are ignored: the number is written next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._places: dict[str, int] = {}
        """Of each stream, the place of its record."""
        self._noted: dict[str, int] = {}
        self._end = 0

    def read(self) -> Mapping[str, int]:
        """Return the number of each stream. A record that is damaged is left out."""
        content = b""
        with contextlib.suppress(OSError):
            self._open()
            content = os.pread(self._file, _MAX_BYTES, 0)
        self.close()
        self._end = len(content) // _RECORD.size * _RECORD.size
        for place in range(0, self._end, _RECORD.size):
            _, number, padded = _RECORD.unpack_from(content, place)
            name = padded.rstrip(b"\0").decode("utf-8", "replace")
            if name and _record(name, number) == content[place : place + _RECORD.size]:
                self._places[name] = place
                self._noted[name] = number
        return self._noted

    def note(self, numbers: Mapping[str, int]) -> None:
        """Write those of *numbers* that have changed."""
        with contextlib.suppress(OSError):
            for name, number in numbers.items():
                if self._noted.get(name) == number:
                    continue
                self._open()
                place = self._places.get(name, self._end)
                os.pwrite(self._file, _record(name, number), place)
                self._places[name] = place
                self._end = max(self._end, place + _RECORD.size)
                self._noted[name] = number

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        """Open or create the file, which only the own user can read, if it is not open. Raises OSError."""
        if self._file < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(self._path, flags, 0o600)


def _record(name: str, number: int) -> bytes:
    """Return the record of a stream."""
    body = _RECORD.pack(0, number, name.encode())[4:]
    return zlib.crc32(body).to_bytes(4, "little") + body


RETRY_SECONDS = 1.0
"""Interval between attempts to write the beginning of a run."""


_NOTE_STOP = "INSERT OR REPLACE INTO number VALUES ('stopped', 1)"
_TAKE_STOP = "DELETE FROM number WHERE name = 'stopped'"


class RunStart:
    """*write* writes the beginning of the run, in a transaction; *read* prepares to read only, after that has failed."""

    def __init__(self, database: Database, write: Callable[[], None], read: Callable[[], None]) -> None:
        self.refusal: EngineError | None = None
        """Why all changes are refused, None after the beginning was written."""
        self.was_stopped = False
        """Whether the run before this one was stopped, and not ended by a fault."""
        self._database = database
        self._write = write
        self._read = read
        self._due = 0.0

    def attempt(self) -> None:
        """Write the beginning of the run, or note that the disk is full. Raises EngineError for other errors."""
        self._database.set_read_only(is_read_only=False)
        try:
            with self._database.operation():
                self._write()
                was_stopped = self._database.execute(_TAKE_STOP).rowcount > 0
        except EngineError as error:
            self._database.set_read_only(is_read_only=True)
            self._read()
            self._due = time.monotonic() + RETRY_SECONDS
            if error.code != "ENOSPC":
                raise
            self.refusal = error
        else:
            self.refusal, self.was_stopped = None, was_stopped

    def attempt_again(self) -> None:
        """Do so if the disk was full, once in a while. Called without a transaction."""
        if self.refusal is not None and time.monotonic() >= self._due:
            self.attempt()

    def note_stop(self) -> None:
        """Note that this run is stopped, so it is expected that messages are not stored until the next one. Raises EngineError."""
        with self._database.operation():
            self._database.execute(_NOTE_STOP)


def start_clock(figures: AllFigures, clock: StoreClock) -> None:
    """Let *clock* continue where it was in an earlier run."""
    kept = figures.text("clock")
    clock.start(KeptClock(**json.loads(kept)) if kept else KeptClock(), figures.newest_date())


def keep_clock(figures: AllFigures, clock: StoreClock) -> None:
    """Note what *clock* needs after a restart, if that has changed."""
    figures.set_text("clock", json.dumps(asdict(clock.kept)))


LOST = "the file of the store was damaged, removed or replaced by an older copy"
"""The reason of the gap in a stream that has lost messages."""

BEGUN_AGAIN = "the stream was begun again"
"""The reason of the gap for a reader whose number is not of this file."""

RESERVE = 1 << 16
"""Numbers of a stream that are used before the second file is written again."""

INTERVAL_SECONDS = 1.0
"""Interval in which the numbers that were acknowledged are written."""

RUNS = 1_000
"""Runs that are remembered."""

_ADD_RUN = "INSERT INTO run (id) VALUES (?)"
_ADD_START = "INSERT INTO run_start (stream, place, seq) VALUES (?, ?, ?)"
_ADD_NEW = "INSERT OR IGNORE INTO run_start (stream, place, seq) VALUES (?, ?, 0)"
_FORGET_RUNS = "DELETE FROM run WHERE place <= ?"
_FORGET_STARTS = "DELETE FROM run_start WHERE stream = ? AND place <= ?"
_LAST_RUN = "SELECT id FROM run ORDER BY place DESC LIMIT 1"
_PLACE = "SELECT place FROM run WHERE id = ?"
_END = "SELECT seq FROM run_start WHERE stream = ? AND place > ? ORDER BY place LIMIT 1"


class Continuity:
    """The numbers of one file, as a cache of its database."""

    def __init__(self, database: Database, figures: AllFigures) -> None:
        self._database = database
        self._figures = figures
        self._file = database.path.with_name(f"{database.path.name}.numbers")
        self._acknowledged = AcknowledgedNumbers(database.path.with_name(f"{database.path.name}.acknowledged"))
        self._bounds = self._read()
        """Of each stream, the number up to which messages were acknowledged, and the one that none exceeds."""
        self._last: dict[str, int] = {}
        self._is_changed = False
        self._due = 0.0
        self.run: int = next((found for (found,) in database.execute(_LAST_RUN).fetchall()), 0)
        """The number of this run; before it has begun, that of the last one, or 0."""
        self._place = 0
        """Its place among the runs, 0 before it has begun."""
        self._begun = (0, 0)
        """Number and place of the run whose beginning is being committed."""
        database.caches.append(self)

    def lost(self, stream: StreamFigures) -> bool:
        """Let *stream* continue above all numbers that it ever had, and return whether it has lost messages. Called for a new one, too."""
        if self._place:
            self._database.execute(_ADD_NEW, (stream.id, self._place))  # ignored, unless it is new in this run
        acknowledged, most = self._bounds.get(stream.name, (0, 0))
        if stream.last_seq >= acknowledged:
            return False
        self._figures.change(stream)
        stream.last_seq = most
        return True

    def begin(self) -> None:
        """Note the beginning of this run."""
        execute = self._database.execute
        run = secrets.randbelow(1 << 52) + 1
        place = execute(_ADD_RUN, (run,)).lastrowid or 0
        execute(_FORGET_RUNS, (place - RUNS,))
        for each in self._figures.streams.values():
            execute(_ADD_START, (each.id, place, each.last_seq))
            execute(_FORGET_STARTS, (each.id, place - RUNS))
        self._begun = (run, place)

    def valid_from(self, stream: StreamFigures, from_seq: int, run: int) -> int:
        """Return where a reader continues that wants to read from *from_seq*, a number of *run*, 0 if it does not know it.

        It is *from_seq*, unless the message before that is not of this file.
        """
        end = stream.last_seq
        if run not in {0, self.run}:
            places = self._database.execute(_PLACE, (run,)).fetchall()
            found = self._database.execute(_END, (stream.id, places[0][0])).fetchall() if places else [(0,)]
            end = found[0][0] if found else end
        elif from_seq > end + 1:
            end = 0
        return min(from_seq, end + 1)

    def load(self) -> None:
        """Forget a beginning that was not committed. What is kept is written only after a commit, or is an upper bound."""
        self._begun = (0, 0)

    def save(self) -> None:
        """Reserve numbers before they are used. Raises sqlite3.Error."""
        if not self._place and self._begun == (0, 0):
            return  # nothing can be stored yet
        streams = [each for each in self._figures.streams.values() if each.last_seq > self._bounds.get(each.name, (0, 0))[1]]
        if not streams:
            return
        former = dict(self._bounds)
        for each in streams:
            self._bounds[each.name] = (self._bounds.get(each.name, (0, 0))[0], each.last_seq + RESERVE)
        try:
            self._write()
        except OSError as error:
            self._bounds = former
            failed = sqlite3.OperationalError(f"cannot write {self._file}: {error.strerror}")
            failed.sqlite_errorcode = sqlite3.SQLITE_FULL if error.errno in {errno.ENOSPC, errno.EDQUOT} else sqlite3.SQLITE_IOERR
            raise failed from None

    def committed(self) -> None:
        """Note which numbers were acknowledged."""
        if self._begun != (0, 0):
            (self.run, self._place), self._begun = self._begun, (0, 0)
        if not self._place:
            return  # the file may have less than was acknowledged, which the beginning of the run finds
        last = {each.name: each.last_seq for each in self._figures.streams.values()}
        if last != self._last:
            self._last, self._is_changed = last, True
            self._acknowledged.note(last)

    def keep(self, *, at_once: bool = False) -> None:
        """Write the numbers that were acknowledged, once in a while. A failure only makes the next loss less certain."""
        if not self._is_changed or (time.monotonic() < self._due and not at_once):
            return
        self._due = time.monotonic() + INTERVAL_SECONDS
        self._is_changed = False
        for name, last in self._last.items():
            self._bounds[name] = (last, max(last, self._bounds.get(name, (0, 0))[1]))
        with contextlib.suppress(OSError):
            self._write()

    def close(self) -> None:
        """Write the numbers that were acknowledged, and close the third file."""
        self.keep(at_once=True)
        self._acknowledged.close()

    def _read(self) -> dict[str, tuple[int, int]]:
        """Return the content of both files; without one that does not exist, or is damaged."""
        bounds: dict[str, tuple[int, int]] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(self._file.read_bytes())
            bounds = {str(name): (int(last), int(most)) for name, (last, most) in found["streams"].items()}
        for name, last in self._acknowledged.read().items():
            low, most = bounds.get(name, (0, 0))
            bounds[name] = (max(low, last), max(most, last))
        return bounds

    def _write(self) -> None:
        """Write the second file; it is on the disk when this returns. Raises OSError."""
        draft = self._file.with_name(f"{self._file.name}.new")
        with open(draft, "wb", opener=_private) as stream:
            stream.write(json.dumps({"streams": self._bounds}).encode())
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(self._file)
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _private(path: str, flags: int) -> int:
    """Open a file that only this user can read or write."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
