"""Reads the journal in batches, each complete although journald writes meanwhile, with the gaps between entries.

The library looks at one file after another, and the entries of one moment are in several: those of a user are in a file of that user. An
entry that comes into a file which was looked at already, just before a later one comes into the next file, is passed over and never
returned. The same happens to the first entries of a new file, until the library has processed that change. If journald numbers the
entries of all files together (since systemd 253), such an entry looks like a removed one; otherwise its absence cannot be seen.
So what may be incomplete is read again, until two readings are equal: where entries seem to be missing, and where several files count their
entries separately.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from sbus_services.feeds.journal.entry import Cursor, JournalEntry, is_echo
from sbus_services.feeds.journal.reader import UnreadableEntryError

BATCH_ENTRIES = 256
"""Entries between two access checks."""

BATCH_BYTES = 1 << 20
"""Size of the payloads of a batch, which is held in memory until the bus has routed it."""


ALONE_ENTRIES = 10_000
"""A source with this number of entries in a row counts as the only one: then an entry that is passed over leaves a gap in the numbers."""


class JournalSource(Protocol):
    """The journal, such as :class:`sbus_services.feeds.journal.reader.JournalReader`."""

    def fileno(self) -> int:
        """Return the descriptor to poll."""

    def timeout_ms(self) -> int | None:
        """Return the longest time to poll."""

    def process(self) -> bool:
        """Process changes; return whether to seek again."""

    def seek(self, last: Cursor | None) -> None:
        """Seek to *last*, or to the first entry."""

    def seek_last(self, lines: int) -> Cursor | None:
        """Seek to the last *lines* entries; return the position before them."""

    def seek_recent(self, saved: Cursor, seconds: float) -> bool:
        """Seek to *saved*, or to the last *seconds* if these begin after it; return whether they do."""

    def read(self) -> JournalEntry | None:
        """Return the next entry. Raises UnreadableEntryError."""


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """An entry, without a payload if it is an echo: an entry of the bus that publishing causes."""

    cursor: Cursor
    key: str
    payload: bytes
    is_whole: bool
    is_echo: bool


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """An entry that cannot be read, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that are not in the journal before the next one, or too old: how many, None if unknown."""

    reason: str
    count: int | None


Item = ReadEntry | DamagedEntry


class BatchReader:
    """Batches from *source*, which the caller owns. Begin first, then read. Raises JournalError wherever the journal cannot be read."""

    def __init__(self, source: JournalSource, backlog_seconds: float) -> None:
        self.last: Cursor | None = None
        """Position of the last entry that was returned."""
        self._source = source
        self._backlog_seconds = backlog_seconds
        self._gap_reason: str | None = None
        """Why entries may be missing before the next one. None if the journal was not sought since the last one."""
        self._damaged = 0
        """Damaged entries since the last one that was returned."""
        self._alone = 0
        """Entries since the last one of another source, or since the start."""

    def begin_near_end(self, lines: int) -> None:
        """Begin with the last *lines* entries."""
        self.last = self._source.seek_last(lines)

    def begin_after(self, saved: Cursor) -> None:
        """Begin after *saved*, or with the backlog if that begins later."""
        self.last = saved
        self._gap_reason = "backlog"
        self._seek()

    def process(self) -> None:
        """Process changes of the journal: new entries, and files that were added or removed."""
        if self._source.process():
            self._seek()

    def read(self) -> list[Item | Gap]:
        """Return the next entries with the gaps before them; nothing if there are none yet: then wait, and :meth:`process`."""
        most = BATCH_ENTRIES
        items = self._read(most)
        # Processing changes makes the library forget that there is something to wait for: so only if something is returned.
        while items and (self._source.process() or self._is_doubtful(items)):
            self._seek()
            most = min(most, len(items))
            before, items = items[:most], self._read(most)
            if items == before:
                break
            # Where entries come and go all the time, a shorter part stays the same.
            most = max(1, most // 2)
        return self._with_gaps(items)

    def _seek(self) -> None:
        """Seek to the place after the last entry again."""
        if self._gap_reason == "backlog" and self.last is not None:
            is_too_old = self._source.seek_recent(self.last, self._backlog_seconds)
            self._gap_reason = "backlog" if is_too_old else "vacuumed"
        else:
            # Where the last entry still is, also as a copy in another file, nothing is missing after it.
            self._source.seek(self.last)
            self._gap_reason = "vacuumed"

    def _read(self, most: int) -> list[Item]:
        """Return up to *most* entries, fewer if they are large or the last ones."""
        items: list[Item] = []
        size = 0
        is_sought = self._gap_reason is not None
        known = self._damaged if is_sought else 0
        while len(items) < most and size < BATCH_BYTES:
            try:
                entry = self._source.read()
            except UnreadableEntryError as wrong:
                if known:
                    known -= 1
                else:
                    items.append(DamagedEntry(str(wrong)))
                continue
            if entry is None:
                break
            if is_sought and self._is_old(entry.cursor):
                items.clear()
                known = self._damaged
                continue
            is_sought = False
            known = 0
            prepared = _prepared(entry)
            items.append(prepared)
            size += len(prepared.payload)
        return items

    def _is_old(self, place: Cursor) -> bool:
        """Return whether the entry at *place*, which was read after a seek, is the last one or before it."""
        if self.last is None or not (place.is_same_entry(self.last) or self.last.is_behind(place)):
            return False
        if not self.last.is_behind(place):
            # No entry is missing before the next one, whatever its file.
            self._gap_reason = None
        return True

    def _is_doubtful(self, items: list[Item]) -> bool:
        """Return whether entries seem to be missing, or their absence could not be seen."""
        if self._alone < ALONE_ENTRIES:
            return True
        last, damaged = self.last, self._damaged
        for item in items:
            if isinstance(item, DamagedEntry):
                damaged += 1
                continue
            if _missing(last, item.cursor, damaged) != 0:
                return True
            last, damaged = item.cursor, 0
        return False

    def _with_gaps(self, items: list[Item]) -> list[Item | Gap]:
        """Return *items* with the gaps between them; the last one is the last that was returned."""
        found: list[Item | Gap] = []
        for item in items:
            if isinstance(item, DamagedEntry):
                self._damaged += 1
            else:
                gap = self._gap_before(item.cursor)
                if gap is not None:
                    found.append(gap)
                is_alone = self.last is None or self.last.source == item.cursor.source
                self._alone = self._alone + 1 if is_alone else 0
                self._gap_reason = None
                self._damaged = 0
                self.last = item.cursor
            found.append(item)
        return found

    def _gap_before(self, place: Cursor) -> Gap | None:
        """Return which entries are missing between the last one and the one at *place*."""
        missing = _missing(self.last, place, self._damaged)
        if missing is None:
            # A new source while reading is a new journal file, not a loss.
            return None if self._gap_reason is None else Gap(self._gap_reason, None)
        return Gap(self._gap_reason or "vacuumed", missing) if missing else None


def _missing(last: Cursor | None, place: Cursor, damaged: int) -> int | None:
    """Return how many entries are missing between *last* and *place*, besides those that are *damaged*; None if unknown."""
    if last is None:
        return 0
    missing = place.missing_since(last)
    return None if missing is None else max(0, missing - damaged)


def _prepared(entry: JournalEntry) -> ReadEntry:
    """Return *entry* as it is published, without the memory of what is not."""
    if is_echo(entry, os.getpid(), os.geteuid()):
        return ReadEntry(entry.cursor, entry.key, b"", is_whole=True, is_echo=True)
    payload, is_whole = entry.payload()
    return ReadEntry(entry.cursor, entry.key, payload, is_whole, is_echo=False)
