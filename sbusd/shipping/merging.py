"""Merges the index entries of past days in the destination, so that its index stays short: one object for each day and host."""

from __future__ import annotations

import time
from collections.abc import Callable

from sbusd.archive.files import RecordError
from sbusd.archive.record.compaction import DAYS_PER_TURN, Merged, compact
from sbusd.archive.storage.store import FileStore
from sbusd.shipping.log_messages import NOT_MERGED
from sbusd.systemd.log_records import Log

INTERVAL_SECONDS = 3600.0
"""Interval between searches; the first is at the start. Each lists the index of the destination once."""


class IndexMerger:
    """Merges the entries of *host* in *store*, of which this program is the only writer; *check* raises an error if it is not."""

    def __init__(
        self,
        store: FileStore,
        host: str,
        check: Callable[[], None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        *,
        date: Callable[[], int] = time.time_ns,
    ) -> None:
        """*date* returns the date by which a day has ended."""
        self.unreadable = 0
        """Number of files of the index that cannot be read and stay as they are; of the last search."""
        self._store = store
        self._host = host
        self._check = check
        self._log = log
        self._clock = clock
        self._date = date
        self._due = float("-inf")

    def turn(self) -> None:
        """Merge the entries of some days, if the last search was an hour ago.

        Raises:
            HostTakenError: another shipper uses the name of the host.
            DamagedCopyError, StorageError, OSError: the destination cannot be used.
        """
        if self._clock() < self._due:
            return
        try:
            merged = compact(self._store, self._host, self._date(), before_write=self._check)
        except RecordError as error:
            merged = Merged(unreadable=1, error=str(error))
        if merged.unreadable > self.unreadable:
            self._log.record(NOT_MERGED, count=merged.unreadable, reason=merged.error)
        self.unreadable = merged.unreadable
        if merged.days < DAYS_PER_TURN:
            self._due = self._clock() + INTERVAL_SECONDS
