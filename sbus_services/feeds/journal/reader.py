"""Reads the journal's files in order and across rotation, by systemd-python. See sd_journal_next(3), sd_journal_get_fd(3)."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

from systemd import journal

from sbus.protocol.errors import SbusError
from sbus_services.feeds.journal.entry import MESSAGE_BYTES, Cursor, Fields, JournalEntry

_WHERE = (Path("/var/log/journal"), Path("/run/log/journal"))
"""Where journald stores the system's journal: on disk, or in memory. It moves between them at any time: journalctl(1) --flush."""

MISSING_FOLDER_MS = 10_000
"""How long a folder of _WHERE that was not there may exist before its entries are read: the library watches only those that it finds."""

_THRESHOLD_BYTES = MESSAGE_BYTES + (1 << 10)
"""Requested part of a compressed value: a little more than is published. libsystemd 252 ignores this hint."""

_MAX_BOOTS = 10_000
"""Boots that are searched for the start of the backlog, each in less than a millisecond."""

MEMORY_BYTES = 512 << 20
"""Limit of the process's data: a hostile value is small on disk and up to 768 MiB when decompressed."""


class JournalError(SbusError):
    """The journal cannot be read."""


class UnreadableEntryError(SbusError):
    """One entry cannot be read, because it is damaged or too large. Reading continues after it."""


class _Files(journal.Reader):
    """The journal files, one step at a time: the library's iteration treats an entry without readable fields as the end."""

    def step(self) -> bool:
        """Go to the next entry; return whether there is one. Raises OSError."""
        return self._next()

    def step_back(self) -> bool:
        """Go to the previous entry; return whether there is one. Raises OSError."""
        return self._previous()

    def place(self) -> str:
        """Return the cursor of the entry. Raises OSError."""
        return self._get_cursor()

    def fields(self) -> Fields:
        """Return the fields of the entry. Raises OSError, MemoryError."""
        fields = self._get_all()
        # The library stops at a field that it cannot decompress. So ask for the most important one separately.
        if "MESSAGE" not in fields:
            with contextlib.suppress(KeyError):
                return {**fields, "MESSAGE": self._get("MESSAGE")}
        return fields


class JournalReader:
    """The entries of this machine's journal, or of the files in one folder. Seek first, then read; close it at the end."""

    def __init__(self, directory: Path | None = None) -> None:
        """Open the journal.

        Raises:
            JournalError: it cannot be opened, or this user may not read the system's.
        """
        self._directory = directory
        self._open()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; call :meth:`process` when it is readable, or after :meth:`timeout_ms`."""
        return self._descriptor

    def timeout_ms(self) -> int | None:
        """Return the longest time to poll, None if unlimited: some file systems do not report changes, and no folder its creation."""
        timeout = self._files.get_timeout_ms()
        times = [timeout] if timeout >= 0 else []
        return min([*times, MISSING_FOLDER_MS] if None in self._folders else times, default=None)

    def process(self) -> bool:
        """Process changes: new entries, and files that were added or removed. Return whether to :meth:`seek` again because of those.

        Raises:
            JournalError: it cannot be read, or this user may not read what was added.
        """
        try:
            change = self._files.process()
        except OSError as wrong:
            raise _failure(wrong) from wrong
        if self._folders != self._find_folders():
            self._files.close()
            self._open()
            return True
        if change == journal.INVALIDATE:
            self._check_permission()
        return change == journal.INVALIDATE

    def seek(self, last: Cursor | None) -> None:
        """Seek to *last*: the next entry is that one, if it still exists. None: to the first entry."""
        try:
            if last is None:
                self._files.seek_head()
            else:
                self._files.seek_cursor(last.text)
        except OSError as wrong:
            raise _failure(wrong) from wrong

    def seek_last(self, lines: int) -> Cursor | None:
        """Seek to the last *lines* entries; return the cursor of the entry before them, None if there is none."""
        try:
            self._files.seek_tail()
            for _ in range(lines + 1):
                if not self._files.step_back():
                    self._files.seek_head()
                    return None
            return Cursor.parse(self._files.place())
        except OSError as wrong:
            raise _failure(wrong) from wrong

    def seek_recent(self, saved: Cursor, seconds: float) -> bool:
        """Seek to *saved*, or to the last *seconds* of the journal if these begin after it; return whether they do.

        Only the time for which the machine ran counts, up to the newest entry. Dates do not decide, because the clock can be set.
        """
        try:
            start = self._start_of_last(saved, int(seconds * 1e6))
            self._files.seek_cursor(saved.text if start is None else start)
        except OSError as wrong:
            raise _failure(wrong) from wrong
        return start is not None

    def _open(self) -> None:
        """Open the journal as it is now. Raises JournalError."""
        self._check_permission()
        self._folders = self._find_folders()
        """Which folders of the system's journal there are."""
        try:
            # Without a folder the library reads this machine's own journal, without entries received from other machines.
            self._files = _Files(path=None if self._directory is None else str(self._directory))
        except OSError as wrong:
            raise JournalError(f"cannot open the journal {self._directory or 'of this machine'}: {wrong.strerror or wrong}") from wrong
        self._files.data_threshold = _THRESHOLD_BYTES
        # The first call starts the watch: before anything is read, so that no new file is missed.
        self._descriptor = self._files.fileno()

    def _check_permission(self) -> None:
        """Raise JournalError if this user may not read all system journal files: the library omits such files silently."""
        for root in _WHERE if self._directory is None else ():
            for file in root.glob("*/system.journal"):
                if not os.access(file, os.R_OK) and file.exists():
                    raise JournalError(f"{file}: permission denied; run as root or as a member of the group systemd-journal")

    def _find_folders(self) -> tuple[tuple[int, int] | None, ...]:
        """Return the identity of each folder of the system's journal, None for one that is not there."""
        return tuple(map(_identity, _WHERE)) if self._directory is None else ()

    def _start_of_last(self, saved: Cursor, duration: int) -> str | None:
        """Return where the last *duration* microseconds of the journal begin; None if not after *saved*, or unknown. Raises OSError."""
        self._files.seek_tail()
        boots: set[str] = set()
        while self._files.step_back():
            last = Cursor.parse(self._files.place())
            if last.boot in boots or len(boots) == _MAX_BOOTS:
                return None
            boots.add(last.boot)
            start = last.monotonic - duration
            if last.boot == saved.boot:
                return _place_in_boot(last, start) if start > saved.monotonic else None
            if start >= 0:
                return _place_in_boot(last, start)
            duration -= last.monotonic
            self._files.seek_cursor(_place_in_boot(last, 0))
            self._files.step()  # to the first entry of the boot, from which the next step goes to the boot before
        return None

    def read(self) -> JournalEntry | None:
        """Return the next entry, None if there is none yet.

        Raises:
            UnreadableEntryError: it is damaged or too large; the next call continues after it.
            JournalError: the journal cannot be read.
        """
        try:
            if not self._files.step():
                return None
        except OSError as wrong:
            raise _failure(wrong) from wrong
        try:
            entry = JournalEntry(Cursor.parse(self._files.place()), self._files.fields())
        except (OSError, MemoryError) as wrong:
            if isinstance(wrong, MemoryError) or wrong.errno == errno.ENOMEM:
                raise UnreadableEntryError("journal entry too large to read") from wrong
            raise UnreadableEntryError(f"damaged journal entry: {wrong.strerror or wrong}") from wrong
        if not entry.fields:
            raise UnreadableEntryError("damaged journal entry: no readable fields")
        return entry

    def close(self) -> None:
        """Close the files."""
        self._files.close()


def _place_in_boot(entry: Cursor, monotonic: int) -> str:
    """Return a cursor for the time *monotonic* in the boot of *entry*. Files without entries of this boot are searched by its date."""
    realtime = max(0, entry.realtime - entry.monotonic + monotonic)
    return f"b={entry.boot};m={monotonic:x};t={realtime:x}"


def bound_memory(most: int = MEMORY_BYTES) -> None:
    """Limit the data of this process to *most* bytes, so that reading a too large entry raises an error.

    Otherwise the kernel would kill the process because of that entry, again after each start. Source: RLIMIT_DATA, getrlimit(2); mapped
    files, such as the journal's, do not count.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # A service already has the limit, and may not set one.
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _failure(wrong: OSError) -> JournalError:
    """Return the error for a failure to read the journal."""
    return JournalError(f"cannot read the journal: {wrong.strerror or wrong}")


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return the device and inode of *folder*, None if it is not there."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
