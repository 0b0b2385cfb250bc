"""The loop of sbus-ship: ships new segments, the oldest first, and removes expired ones, until it is stopped."""

from __future__ import annotations

import random
import re
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sbus_archive.record.index import DayName, list_index, read_day, segment_of_entry
from sbus_archive.record.shipped import ListWriter
from sbus_archive.shipping.destination import Expiry, IndexMerger
from sbus_archive.shipping.log_messages import DATE, EXPIRED, FAILED, LOST, RESUMED, UNREADABLE
from sbus_archive.shipping.upload import Outcome, Uploader
from sbus_archive.storage.attempts import StorageError, is_reported, reason_of
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.store import DamagedCopyError, LocalStore
from sbus_programs.systemd.log_records import Log
from sbus_programs.systemd.service_manager import ServiceManager
from sbus_programs.wall_clock import WallClock

FIRST_DELAY_SECONDS = 1.0
"""Maximum delay after the first failure. It doubles with each failure in a row."""

LONGEST_DELAY_SECONDS = 300.0
"""Maximum delay: an outage of hours costs few requests, and shipping continues minutes after its end."""

STATUS_SECONDS = 5.0
"""The shortest interval between two notifications during a transfer."""

_WAIT_SECONDS = 20.0
"""Interval of notifications while nothing is to do; shorter than the watchdog's."""


@dataclass(slots=True)
class Counts:
    """What this run did."""

    shipped: int = 0
    present: int = 0
    lost: int = 0
    earlier: int = 0
    """Segments that the recorder removed before the list of shipped segments was created."""
    expired: int = 0
    failures: int = 0
    unreadable: int = 0
    """Segments that were skipped, counted once in each search."""
    waiting: int = 0


class Heartbeat:
    """Notifies the service manager while the shipper makes progress; a transfer that hangs makes none."""

    def __init__(self, manager: ServiceManager, clock: Callable[[], float] = time.monotonic) -> None:
        self.status: Callable[[], str] = lambda: ""
        """Returns the status for people."""
        self._manager = manager
        self._clock = clock
        self._notified = float("-inf")

    def beat(self) -> None:
        """Notify, at most every STATUS_SECONDS."""
        now = self._clock()
        if self._manager.is_there and now - self._notified >= STATUS_SECONDS:
            self._notified = now
            self._manager.alive(self.status())


class Shipper:
    """Ships the segments of *host* in *archive*. :meth:`stop` ends :meth:`run` after the current segment."""

    def __init__(
        self,
        archive: Path,
        host: str,
        uploader: Uploader,
        expiry: Expiry,
        done: ListWriter,
        *,
        log: Log,
        beat: Callable[[], None] = lambda: None,
        claim: Callable[[], None] = lambda: None,
        merger: IndexMerger | None = None,
        clock: WallClock | None = None,
    ) -> None:
        """*done* is the list of shipped segments; *beat* is called while there is progress; *claim* before the first segment.

        *claim* takes the name of the host in the destination. It is repeated if it fails, as everything else. *merger* merges the index of
        the destination. *clock* decides what is expired.
        """
        self.counts = Counts()
        self._archive = archive
        self._uploader = uploader
        self._expiry = expiry
        self._done = done
        self._log = log
        self._beat = beat
        self._claim = claim
        self._merger = merger
        self._clock = clock or WallClock(lambda line: log.record(DATE, reason=line))
        self._is_claimed = False
        self._is_stopped = False
        self._signals: int | None = None
        self._host = host
        self._days: dict[DayName, str] = {}
        """Day files of the archive whose segments are all shipped."""
        self._own = re.compile(rf"\d{{4}}-\d\d-\d\dT\d\d\.{re.escape(host)}\.\d{{20}}\.json")
        self._failures_in_a_row = 0

    def stop(self) -> None:
        """End :meth:`run` soon. Signal handlers may call it."""
        self._is_stopped = True

    def status(self, retries: int) -> str:
        """Return the status for the service manager; *retries* are those of the store."""
        counts = self.counts
        words = f"{counts.shipped} segments shipped, {self._uploader.bytes >> 20} MiB; {counts.waiting} waiting"
        others = {
            "failures": counts.failures,
            "retries": retries,
            "lost": counts.lost,
            "removed before shipping began": counts.earlier,
            "unreadable": counts.unreadable,
            "expired": counts.expired + self._expiry.removed,
            "expired but unreadable": self._expiry.unreadable,
            "not merged": self._merger.unreadable if self._merger else 0,
        }
        words += "".join(f"; {name}: {count}" for name, count in others.items() if count)
        return words + "; the date jumped, see the log" * self._clock.is_doubted

    def run(self, interval: float, *, once: bool = False, signals: int | None = None) -> None:
        """Ship until :meth:`stop`, or with *once* until all segments are shipped that exist now.

        *signals* is the descriptor of the context in which signals call :meth:`stop`, :class:`sbus_programs.systemd.signals.EndingSignals`.

        Raises:
            HostTakenError, DifferentContentError: another shipper uses the same host name.
            RecordError: *archive* is not an archive.
            StorageError, DamagedCopyError, OSError: with *once*, the destination cannot be used.
        """
        self._signals = signals
        while not self._is_stopped:
            self._beat()
            try:
                self.turn()
            except (StorageError, DamagedCopyError, OSError) as error:
                self._failed(error)
                if once:
                    raise
                self._wait(self._delay())
                continue
            if self._failures_in_a_row:
                self._log.record(RESUMED, count=self._failures_in_a_row)
                self._failures_in_a_row = 0
            if once:
                return
            self._wait(interval)

    def turn(self) -> None:
        """Ship the segments that exist now, the oldest first, then remove expired ones. Raises what :meth:`run` raises with *once*."""
        if not self._is_claimed:
            self._claim()
            self._is_claimed = True
        names = self._new_names()
        self.counts.waiting = len(names)
        skipped = 0
        for name in names:
            if self._is_stopped:
                return
            skipped += not self._ship(name)
            self.counts.waiting -= 1
            self._beat()
        self.counts.waiting = skipped
        self._expire()
        if self._merger is not None and not self._is_stopped:
            self._merger.turn()

    def _new_names(self) -> list[str]:
        """Return the names of the index entries to ship, the oldest first. Raises RecordError: a file of the index cannot be read."""
        listing = list_index(self._archive)
        names = {name for name in listing.names if self._own.fullmatch(name)}
        for day, fingerprint in listing.days.items():
            # Entries of past days are usually merged after they were shipped, but a new list of shipped segments is empty.
            if day.host == self._host and self._days.get(day) != fingerprint:
                merged = {entry.name.index_name for entry in read_day(LocalStore(self._archive), day).values()}
                if all(name in self._done for name in merged):
                    self._days[day] = fingerprint
                names |= merged
        return sorted(name for name in names if name not in self._done)

    def _ship(self, name: str) -> bool:
        """Ship one segment; return whether it is done."""
        try:
            outcome = self._uploader.ship(name, self._date())
        except RecordError as error:
            self.counts.unreadable += 1
            if is_reported(self.counts.unreadable):
                self._log.record(UNREADABLE, reason=str(error), count=self.counts.unreadable)
            return False
        match outcome:
            case Outcome.SHIPPED:
                self.counts.shipped += 1
            case Outcome.PRESENT:
                self.counts.present += 1
            case Outcome.EARLIER:
                self.counts.earlier += 1
            case Outcome.EXPIRED:
                self.counts.expired += 1
            case Outcome.LOST:
                self.counts.lost += 1
                if is_reported(self.counts.lost):
                    self._log.record(LOST, name=name, count=self.counts.lost)
        self._done.add(name)
        if (segment := segment_of_entry(name)) is not None:
            self._clock.message(segment.start_ns)
        return True

    def _date(self) -> int:
        """Return the date by which segments expire."""
        keep = self._expiry.keep_ns
        return self._clock.cutoff(keep) + keep

    def _expire(self) -> None:
        """Remove expired segments from the destination."""
        count, last = 0, ""
        for removed in self._expiry.remove(self._date()):
            count, last = count + 1, removed.path
            self._beat()
            if self._is_stopped:
                break
        if count:
            self._log.record(EXPIRED, count=count, name=last)

    def _failed(self, error: Exception) -> None:
        """Count a failure, and log the 1st, 10th, 100th in a row."""
        self.counts.failures += 1
        self._failures_in_a_row += 1
        if is_reported(self._failures_in_a_row):
            self._log.record(FAILED, reason=reason_of(error), count=self.counts.failures)

    def _delay(self) -> float:
        """Return a random delay, so that a fleet does not return all at once after an outage."""
        most = min(FIRST_DELAY_SECONDS * 2 ** min(self._failures_in_a_row - 1, 20), LONGEST_DELAY_SECONDS)
        return random.uniform(most / 2, most)  # noqa: S311 - no secret

    def _wait(self, seconds: float) -> None:
        """Wait for *seconds*, or until a signal has stopped the shipper."""
        end = time.monotonic() + seconds
        watched = [] if self._signals is None else [self._signals]
        while (left := end - time.monotonic()) > 0 and not self._is_stopped:
            select.select(watched, [], [], min(left, _WAIT_SECONDS))
            self._clock.date()
            self._beat()
