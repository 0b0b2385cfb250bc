"""What time does to the store: delays and leases that end, messages that expire or are too old, and limits that were lowered.

A message whose time or key the disk has changed is not removed by its age, which is unknown. It stays until a limit or a purge removes it,
and does not keep others in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sbus_services.store.engine.checksums import DAMAGED, HEAD, HEAD_WIDTH, Checksums
from sbus_services.store.engine.clocks import StoreClock
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.intake import Intake
from sbus_services.store.engine.messages import Places, Sweep
from sbus_services.store.engine.put_ids import PutIds
from sbus_services.store.engine.queues import Queues
from sbus_services.store.engine.removal import Announcements, Removal
from sbus_services.store.engine.schema import BLOCKED, DEAD, LEASED, MAX_SEQ, READY, REMOVABLE, RETRYING, SEQ_BITS, SIZE, Removable
from sbus_services.store.engine.stream import Queue, Stream, id_range

LEASE_OVER = "the lease ended"
"""The reason of a dead letter whose last worker neither acknowledged nor extended it."""

TOO_OLD = "older than the retain of its stream"
"""The reason of a dead letter for which there was no worker in time."""

FREE_PAGES = 4_096
"""Unused pages in the file above which a sweep returns some to the disk."""

MAX_KEPT = 10_000
"""Damaged messages that are passed over; above it, others stay with them."""

_VACUUM_PAGES = 256

_CHECKED = f"{HEAD}, {SIZE}"

# The inner part uses the index, the outer one reads the row, which can differ from the index.
_EXPIRED = f"SELECT {_CHECKED} FROM message WHERE id IN (SELECT id FROM message WHERE expires <= ? ORDER BY expires LIMIT ?)"
_EXPIRES = "SELECT message.id, expires FROM message WHERE expires IS NOT NULL ORDER BY expires LIMIT ?"
_OF_KEY = f"SELECT {REMOVABLE} FROM message WHERE stream = ? AND key = ? AND gap IS NULL ORDER BY id DESC"
_IS_LEASED = f"SELECT 1 FROM job WHERE id = ? AND state = {LEASED}"
_OLD = f"SELECT {_CHECKED}, time FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
_OLD_GAPS = f"SELECT {_CHECKED}, time FROM message WHERE stream = ? AND gap IS NOT NULL ORDER BY id LIMIT ?"
_OLD_JOBS = f"SELECT {HEAD}, line FROM job JOIN message ON message.id = job.id WHERE queue = ? AND state = ? ORDER BY job.id LIMIT ?"
_OLD_DEAD = (
    f"SELECT {_CHECKED}, at FROM job JOIN message ON message.id = job.id"
    f" WHERE queue = ? AND state = {DEAD} AND at IS NOT NULL ORDER BY at LIMIT ?"
)


class Retention:
    """Does what is due, in steps of a bounded number of rows."""

    def __init__(
        self,
        database: Database,
        figures: AllFigures,
        *,
        intake: Intake,
        removal: Removal,
        queues: Queues,
        ids: PutIds,
        announcements: Announcements,
        checksums: Checksums,
    ) -> None:
        self._database = database
        self._run = database.execute
        self._figures = figures
        self._intake = intake
        self._removal = removal
        self._queues = queues
        self._ids = ids
        self._announcements = announcements
        self._checksums = checksums
        self._kept: set[int] = set()
        """Messages that are passed over."""

    def sweep(self, streams: Mapping[str, Stream], clock: StoreClock, max_rows: int, places: Places, *, is_full: bool) -> Sweep:
        """Do what is due now, with at most about *max_rows* rows of each kind; see Engine.sweep. *is_full*: the disk is almost full."""
        now, date = clock.now(), clock.date()
        found, busy = Sweep(), False
        removed = 0
        queues = [stream.queue for stream in streams.values() if stream.queue is not None]
        for queue in queues:
            before = queue.figures.ready
            ended = self._leases(queue, clock, max_rows)
            found.ended.extend(ended)
            busy |= len(ended) >= max_rows
            busy |= self._queues.due(queue.figures, now, date, max_rows) >= max_rows
            if queue.figures.ready > 0 and queue.figures.ready != before:
                found.ready.add(queue.settings.name)
        expired, more = self._expire(streams, now, max_rows)
        removed += expired
        busy |= more
        for stream in streams.values():
            before_sweep = stream.figures.removed
            busy |= self._retain(stream, clock, max_rows) >= max_rows
            busy |= self._intake.trim(stream, max_rows) >= max_rows
            removed += stream.figures.removed - before_sweep
        values, letters, until = self._announcements.after(places, max_rows)
        busy |= until != places
        busy |= self._ids.forget(now, max_rows) >= max_rows
        busy |= self._shrink(is_full=is_full)
        next_ms = now if busy else self._next(streams, clock)
        return Sweep(found.ready, letters, found.ended, removed, busy, next_ms, values, until)

    def _leases(self, queue: Queue, clock: StoreClock, max_rows: int) -> list[tuple[int, int]]:
        """End leases that are over, and return connection and lease of each."""
        late = self._queues.late(queue.figures, clock.leases(), max_rows)
        for held in late:
            self._queues.retry(queue.figures, held, tries=queue.settings.tries, wait=0, reason=LEASE_OVER, clock=clock)
        return [(held.connection, held.lease) for held in late]

    def _expire(self, streams: Mapping[str, Stream], now: int, max_rows: int) -> tuple[int, bool]:
        """Remove messages that have expired, but no jobs that a worker has. Return how many, and whether there may be more."""
        leased = sum(queue.leased for queue in self._figures.queues.values())
        names = {each.figures.id: each.figures for each in streams.values()}
        by_stream: dict[int, list[Removable]] = {}
        most = max_rows + leased + len(self._kept)
        rows = self._run(_EXPIRED, (now, most)).fetchall()
        for row in [_removable(each) for each in rows if self._is_right(each)]:
            number = row.id >> SEQ_BITS
            if number in names and not (leased and self._run(_IS_LEASED, (row.id,)).fetchall()):
                older = self._older(names[number], row)
                known = {each.id for each in by_stream.setdefault(number, [])}
                by_stream[number] += [each for each in (row, *older) if each.id not in known]
        count = 0
        for number, each in by_stream.items():
            removed = self._removal.remove(names[number], each)
            names[number].removed += removed
            count += removed
        return count, len(rows) >= most and count > 0

    def _older(self, stream: StreamFigures, row: Removable) -> list[Removable]:
        """Return the older values of a key whose last value has expired: they end with it, so that none becomes the last value again."""
        if not stream.is_keyed:
            return []
        found = [Removable(*each) for each in self._run(_OF_KEY, (stream.id, row.key)).fetchall()]
        return found[1:] if found and found[0].id == row.id else []

    def _retain(self, stream: Stream, clock: StoreClock, max_rows: int) -> int:
        """Remove what is older than the stream keeps, and return how many rows. Jobs become dead letters first."""
        if not stream.settings.retain:
            return 0
        before = clock.cutoff(round(stream.settings.retain * 1000))
        if stream.queue is not None:
            return self._retain_jobs(stream, stream.queue, before, clock.date(), max_rows)
        rows = self._run(_OLD, (*id_range(stream.figures), max_rows + len(self._kept))).fetchall()
        return self._remove_old(stream.figures, rows, before)

    def _retain_jobs(self, stream: Stream, queue: Queue, before: int, date: int, max_rows: int) -> int:
        """Do so for a stream with a queue."""
        count = 0
        for state in (READY, BLOCKED, RETRYING):
            for *head, line in self._run(_OLD_JOBS, (queue.figures.id, state, max_rows)).fetchall():
                number, time = head[:2]
                is_right = self._checksums.is_head_right(tuple(head))
                if is_right and time > before:
                    break
                self._queues.kill_untaken(queue.figures, number, state, TOO_OLD if is_right else DAMAGED, date=date, line=line)
                count += 1
        rows = self._run(_OLD_DEAD, (queue.figures.id, max_rows + len(self._kept))).fetchall()
        dead = self._remove_old(stream.figures, rows, before)
        if dead:
            self._figures.change(queue.figures)
            queue.figures.dropped_dead += dead
        gaps = self._run(_OLD_GAPS, (stream.figures.id, max_rows)).fetchall()
        return count + dead + self._remove_old(stream.figures, gaps, before)

    def _remove_old(self, stream: StreamFigures, rows: list[Any], before: int) -> int:
        """Remove those of *rows* at the beginning whose time, the last column, is at most *before*."""
        old: list[Removable] = []
        for *row, time in rows:
            if not self._is_right(row):
                continue
            if time > before:
                break
            old.append(_removable(row))
        if old:
            stream.removed += self._removal.remove(stream, old)
            stream.removed_seq = max(stream.removed_seq, old[-1].id & MAX_SEQ)
        return len(old)

    def _oldest(self, stream: Stream) -> list[int]:
        """Return the times by which the next row is removed: of each kind, that of the first."""
        kept, figures = len(self._kept) + 1, stream.figures
        if stream.queue is None:
            kinds = [self._run(_OLD, (*id_range(figures), kept)).fetchall()]
        else:
            queue = stream.queue.figures.id
            jobs = [self._run(_OLD_JOBS, (queue, state, 1)).fetchall() for state in (READY, BLOCKED, RETRYING)]
            dead, gaps = self._run(_OLD_DEAD, (queue, kept)).fetchall(), self._run(_OLD_GAPS, (figures.id, kept)).fetchall()
            kinds = [[(*row[:-1], row[1]) for row in rows] for rows in jobs] + [dead, gaps]
        firsts = [next((row for row in rows if row[0] not in self._kept), None) for rows in kinds]
        return [row[-1] for row in firsts if row is not None]

    def _is_right(self, row: Sequence[Any]) -> bool:
        """Return whether the time and the key of a message are as they were stored; *row* has _CHECKED."""
        if row[0] in self._kept:
            return False
        is_right = self._checksums.is_head_right(tuple(row[:HEAD_WIDTH]))
        if not is_right and len(self._kept) < MAX_KEPT:
            self._kept.add(row[0])
        return is_right

    def _shrink(self, *, is_full: bool) -> bool:
        """Return unused pages of the file to the disk, if there are many, or *is_full*: so a purge helps a full disk.

        The result is whether a full disk needs more of them.
        """
        ((free,),) = self._run("PRAGMA freelist_count").fetchall()
        ((pages,),) = self._run("PRAGMA page_count").fetchall()
        if not ((free > FREE_PAGES and free * 4 > pages) or (free and is_full)):
            return False
        for _ in range(min(free, _VACUUM_PAGES)):
            self._run("PRAGMA incremental_vacuum(1)")  # one page each: the module runs only the first step of this statement
        self._database.is_shrinking |= is_full
        return is_full and free > _VACUUM_PAGES

    def _next(self, streams: Mapping[str, Stream], clock: StoreClock) -> int:
        """Return when something will be due, or 0."""
        now, date, leases = clock.now(), clock.date(), clock.leases()
        times = [self._ids.next_ms()]
        leased = sum(queue.leased for queue in self._figures.queues.values())
        for number, expires in self._run(_EXPIRES, (leased + len(self._kept) + 1,)).fetchall():
            if number not in self._kept and not (leased and self._run(_IS_LEASED, (number,)).fetchall()):
                times.append(expires)
                break
        for stream in streams.values():
            if stream.settings.retain:
                before = clock.cutoff(round(stream.settings.retain * 1000))
                times += [now + oldest - before for oldest in self._oldest(stream)]
            if stream.queue is not None:
                times += self._queues.next_ms(stream.queue.figures, now, date, leases)
        return min((max(time, now + 1) for time in times if time), default=0)


def _removable(row: Sequence[Any]) -> Removable:
    """Return what removes a message; *row* has _CHECKED."""
    account, size = row[HEAD_WIDTH - 1 :]
    return Removable(row[0], account, size, row[8], row[2])
