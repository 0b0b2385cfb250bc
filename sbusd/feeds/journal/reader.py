"""Reads the journal's files in order and across rotation, by systemd-python. See sd_journal_next(3), sd_journal_get_fd(3)."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

from systemd import journal

from sbusd.feeds.journal.cursor import Cursor
from sbusd.feeds.journal.entry import MESSAGE_BYTES, Fields, JournalEntry
from sbusd.protocol.errors import SbusError

_WHERE = (Path("/var/log/journal"), Path("/run/log/journal"))
"""Where journald stores the system's journal: on disk, or in memory."""

_THRESHOLD_BYTES = MESSAGE_BYTES + (1 << 10)
"""Requested part of a compressed value: a little more than is published. libsystemd 252 ignores this hint."""

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
        if directory is None:
            _check_permission()
        try:
            # Without a folder the library reads this machine's own journal, without entries received from other machines.
            self._files = _Files(path=None if directory is None else str(directory))
        except OSError as wrong:
            raise JournalError(f"cannot open the journal {directory or 'of this machine'}: {wrong.strerror or wrong}") from wrong
        self._files.data_threshold = _THRESHOLD_BYTES
        # The first call starts the watch: before anything is read, so that no new file is missed.
        self._descriptor = self._files.fileno()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; call :meth:`process` when it is readable, or after :meth:`timeout_ms`."""
        return self._descriptor

    def timeout_ms(self) -> int | None:
        """Return the longest time to poll, None if unlimited: some file systems do not report changes."""
        timeout = self._files.get_timeout_ms()
        return None if timeout < 0 else timeout

    def process(self) -> None:
        """Process changes: new entries, and files that were added or removed."""
        try:
            self._files.process()
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

    def seek(self, cursor: Cursor) -> None:
        """Seek to the entry of *cursor*, or to the next one if it is gone: the next read returns it."""
        try:
            self._files.seek_cursor(cursor.text)
        except OSError as wrong:
            raise _failure(wrong) from wrong

    def seek_time(self, seconds: float) -> None:
        """Seek to the first entry that is not older than *seconds* since 1970."""
        try:
            # The library takes an integer as microseconds.
            self._files.seek_realtime(float(max(0.0, seconds)))
        except OSError as wrong:
            raise _failure(wrong) from wrong

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


def _check_permission() -> None:
    """Raise JournalError if this user may not read all system journal files: the library omits such files silently."""
    for root in _WHERE:
        for file in root.glob("*/system.journal"):
            if not os.access(file, os.R_OK):
                raise JournalError(f"{file}: permission denied; run as root or as a member of the group systemd-journal")
