"""The date that a program may delete by. It doubts the wall clock after a jump.

A program that deletes by age takes its cutoff from :class:`WallClock`, never from ``time.time``: one wrong date, from a bad hardware
clock, a restored virtual machine or a wrong time server, would make everything old at once.

CLOCK_REALTIME minus CLOCK_BOOTTIME changes only if the clock is set. Slewing by NTP changes both, and both count while the machine
sleeps. So a change of this difference is a jump. At the start, the difference is compared with the one in a kept file, or with the date
of the newest message. A doubted date is believed after it was steady for some time and messages continued, or if an administrator writes
a date into the kept file. Meanwhile the date continues from the last one that was known to be right. Times are in nanoseconds. Spec:
docs/clocks.md and sbus(7), "DATES THAT JUMP".
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECOND = 10**9
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE

JUMP = 10 * SECOND
"""A larger change of the wall clock against the boot clock, in one step or in several, is a jump."""

RESTART = 30 * MINUTE
"""A machine that was off for at most this long is not doubted when it starts."""

SHORTEST_DOUBT = 10 * MINUTE
LONGEST_DOUBT = DAY
"""A date is believed after it was steady for an hour for each day of the jump, but within these two limits."""

_LOOK = MINUTE
"""Interval in which the kept file is looked at: an administrator may have written a date."""
_KEEP = 10 * MINUTE
"""Interval in which it is written while nothing changes."""
_MAX_EARLY = 32
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Clocks:
    """The two clocks and the identity of this boot. Tests give others."""

    wall: Callable[[], int] = time.time_ns
    boot: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    boot_id: Callable[[], str] = lambda: Path(_BOOT_ID).read_text(encoding="ascii").strip()


@dataclass(slots=True)
class _Doubt:
    """A date that is not believed yet."""

    offset: int
    """Wall clock minus boot clock."""
    since: int
    """Since when it is steady, on the boot clock."""
    wait: int
    """For how long it must be steady."""
    in_service: bool
    """Whether the clock was set in this boot, so that messages before it may have a date that is too early."""
    has_message: bool = False
    """Whether a message was dated after the wait."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """The content of the kept file."""

    date: int
    boot_id: str
    offset: int
    doubted: int
    """The doubted date when the file was written, or 0."""
    steady: int
    """For how long it had been steady."""
    early: tuple[tuple[int, int], ...]


class WallClock:
    """The date by which one program deletes. Not thread-safe.

    Call :meth:`date` or :meth:`cutoff` whenever something is deleted, and about once a minute: a jump is noticed then.
    """

    def __init__(
        self, note: Callable[[str], None], *, newest: int | None = None, kept: Path | None = None, clocks: Clocks | None = None
    ) -> None:
        """*note* gets one line for the log at each jump and at its end.

        *newest* is the date of the newest message that the program has, *kept* a file of the program's own in which the date survives a
        restart. The file wins. Without both, the date is believed.
        """
        self.jumps = 0
        """Number of jumps that were noticed, one at the start included."""
        self._note = note
        self._file = kept
        self._clocks = clocks or Clocks()
        self._boot_id = ""
        try:
            self._boot_id = self._clocks.boot_id()
        except OSError as error:
            if kept is not None:
                note(f"cannot tell a restart from a boot, and may doubt the date after each: {_BOOT_ID}: {error.strerror}")
        self._doubt: _Doubt | None = None
        self._early: list[tuple[int, int]] = []
        """Of each time in which messages may have got a date that is too early: its end, and by how much."""
        self._written: tuple[int, int] | None = None
        """Inode and time of modification of the kept file, as this program wrote it."""
        self._look_at = self._keep_at = 0
        self._is_unwritable = False
        wall, boot = self._clocks.wall(), self._clocks.boot()
        self._offset = wall - boot
        """Wall clock minus boot clock, as far as it is believed."""
        self._start(wall, boot, newest)

    @property
    def is_doubted(self) -> bool:
        """Whether the date of the wall clock is not believed now."""
        return self._doubt is not None

    def date(self) -> int:
        """Return the date for deletions: that of the wall clock, unless it is doubted; then at most the one that was expected."""
        wall, boot = self._clocks.wall(), self._clocks.boot()
        if self._file and boot >= self._look_at:
            self._look_at = boot + _LOOK
            self._obey(self._file, wall, boot)
        self._compare(wall - boot, boot)
        if self._file and boot >= self._keep_at:
            self._keep_at = boot + (_LOOK if self._doubt else _KEEP)
            self._write(self._file, boot)
        return min(wall, boot + self._offset) if self._doubt else wall

    def cutoff(self, age: int) -> int:
        """Return the date before which everything is older than *age*.

        After messages may have got a date that is too early, this much more is kept, until *age* is over.
        """
        date = self.date()
        return date - age - max((lag for end, lag in self._early if date < end + age), default=0)

    def message(self, date: int) -> None:
        """Take note of the *date* of a new message. A doubted date is believed only if messages continue."""
        doubt = self._doubt
        if doubt and doubt.since + doubt.wait + doubt.offset <= date <= self._clocks.boot() + doubt.offset + JUMP:
            doubt.has_message = True

    def _start(self, wall: int, boot: int, newest: int | None) -> None:
        """Compare the date with what is known from an earlier run."""
        kept = self._read() if self._file else None
        is_same_boot = isinstance(kept, _Kept) and kept.boot_id == self._boot_id != ""
        if isinstance(kept, _Kept):
            expected = kept.offset if is_same_boot else kept.date
            self._early = list(kept.early)
        elif (date := kept if kept is not None else newest) is not None:
            expected = date - boot
        else:
            return
        offset = self._offset
        if abs(offset - expected) <= (JUMP if is_same_boot else RESTART):
            return
        self._offset = expected
        doubt = self._begin(offset, boot, in_service=is_same_boot)
        if isinstance(kept, _Kept) and kept.doubted and 0 <= wall + JUMP - kept.doubted <= max(abs(offset - expected), DAY):
            # The date continues from the one that was doubted before: the time in which that was steady counts.
            doubt.since -= kept.steady

    def _compare(self, offset: int, boot: int) -> None:
        """Notice a jump, or the end of a doubt."""
        doubt = self._doubt
        if abs(offset - self._offset) <= JUMP:
            if doubt:
                self._remember_early(boot + self._offset, self._offset - doubt.offset)
                self._end(boot, "the date is again as expected")
        elif doubt is None:
            self._begin(offset, boot, in_service=True)
        elif abs(offset - doubt.offset) > JUMP:
            self._remember_early(boot + self._offset, self._offset - doubt.offset)
            self._begin(offset, boot, in_service=True)
        elif boot - doubt.since >= doubt.wait and doubt.has_message:
            if doubt.in_service:
                self._remember_early(doubt.since + doubt.offset, doubt.offset - self._offset)
            self._offset = doubt.offset
            self._end(boot, "the new date was steady and messages continued; it is believed now")

    def _begin(self, offset: int, boot: int, *, in_service: bool) -> _Doubt:
        """Doubt the date that has this *offset*, and say so."""
        wait = min(max(abs(offset - self._offset) // 24, SHORTEST_DOUBT), LONGEST_DOUBT)
        self._doubt = doubt = _Doubt(offset, boot, wait, in_service)
        self.jumps += 1
        self._keep_at = 0
        remedy = f"; if it is right, run: date +%s > {self._file}" if self._file else ""
        self._note(
            f"the date jumped: expected {text_of(boot + self._offset)}, the clock says {text_of(boot + offset)}; nothing is deleted"
            f" because of it until it was steady for {wait // MINUTE} min and messages continue{remedy}"
        )
        return doubt

    def _end(self, boot: int, reason: str) -> None:
        """Believe the date."""
        self._doubt = None
        self._keep_at = 0
        self._note(f"{reason}: {text_of(boot + self._offset)}")

    def _remember_early(self, end: int, lag: int) -> None:
        """Remember that messages until *end* may have got a date that is too early by *lag*, if that is positive."""
        if lag <= 0:
            return
        self._early.append((end, lag))
        if len(self._early) > _MAX_EARLY:
            first, second = self._early[:2]
            self._early[:2] = [(max(first[0], second[0]), max(first[1], second[1]))]

    def _obey(self, file: Path, wall: int, boot: int) -> None:
        """Believe the date that an administrator has written into the kept *file*, if it is that of the clock."""
        if self._doubt is None or _stamp_of(file) == self._written:
            return
        date = self._read()
        if isinstance(date, int) and abs(wall - date) <= RESTART:
            self._offset = wall - boot
            self._end(boot, f"{file} confirms the date")

    def _read(self) -> _Kept | int | None:
        """Return the content of the kept file, or the date that an administrator has written there; None without a valid file."""
        try:
            text = self._file.read_text(encoding="ascii") if self._file else ""
            found = json.loads(text)
            if isinstance(found, int):
                return found * SECOND
            return _Kept(
                int(found["date"]),
                str(found["boot"]),
                int(found["offset"]),
                int(found["doubted"]),
                int(found["steady"]),
                tuple((int(end), int(lag)) for end, lag in found["early"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._note(f"cannot use {self._file}: {error}; the date is compared with that of the newest message instead")
            return None

    def _write(self, file: Path, boot: int) -> None:
        """Write the kept *file*. A file that cannot be written is reported once."""
        doubt = self._doubt
        content = {
            "date": boot + self._offset,
            "boot": self._boot_id,
            "offset": self._offset,
            "doubted": boot + doubt.offset if doubt else 0,
            "steady": boot - doubt.since if doubt else 0,
            "early": self._early,
        }
        draft = file.with_name(f".{file.name}.tmp")
        try:
            with open(draft, "w", encoding="ascii", opener=_private) as stream:
                json.dump(content, stream)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(file)
        except OSError as error:
            if not self._is_unwritable:
                self._note(f"cannot write {file}: {error.strerror}; after a restart, the date is compared with an older one")
            self._is_unwritable = True
            return
        self._is_unwritable = False
        self._written = _stamp_of(file)


def text_of(date: int) -> str:
    """Return *date* for people, in UTC; dates that a calendar does not have as seconds."""
    try:
        return datetime.datetime.fromtimestamp(date // SECOND, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{date // SECOND} s"


def _private(path: str, flags: int) -> int:
    """Open a file that other users cannot read or write."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)


def _stamp_of(file: Path) -> tuple[int, int] | None:
    """Return inode and time of modification of *file*, or None if it cannot be read."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
