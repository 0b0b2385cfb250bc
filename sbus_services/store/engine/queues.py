"""Queues: jobs with leases, tries, backoff and dead letters. Spec: sbus-store(8)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from sbus.protocol.framed_data import MAX_DELAY_SECONDS
from sbus_programs.config.store import QueueSettings
from sbus_services.store.engine.checksums import DAMAGED, Checksums
from sbus_services.store.engine.clocks import StoreClock
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, QueueFigures, StreamFigures
from sbus_services.store.engine.intake import MAX_REASON_BYTES
from sbus_services.store.engine.messages import EngineError, JobInfo, JobPage, JobState, LeasedJob, Released, Worker
from sbus_services.store.engine.removal import Announcements, Removal
from sbus_services.store.engine.schema import (
    BLOCKED,
    COLUMNS,
    DATED,
    DEAD,
    DELAYED,
    LEASED,
    READY,
    REMOVABLE,
    RETRYING,
    WIDTH,
    Removable,
    message_id,
    size_of,
)
from sbus_services.store.engine.stream import JobLines, Queue, Stream

WORKER_DIED = "the worker disconnected"
"""The reason of a dead letter whose last worker died."""

RETRIED = "the worker asked for a retry"
"""The reason of a dead letter whose last worker gave none."""

STATES: dict[JobState, tuple[int, ...]] = {
    "ready": (READY, BLOCKED),
    "leased": (LEASED,),
    "delayed": (DELAYED, RETRYING, DATED),
    "dead": (DEAD,),
}

MAX_PASSED = 100
"""Jobs that one operation looks at in addition to those that the worker may get: they have expired, or are damaged."""

_JOIN = "FROM job JOIN message ON message.id = job.id"
_TAKE = f"SELECT {COLUMNS}, tries, line {_JOIN} WHERE queue = ? AND state = {READY} ORDER BY job.id LIMIT ?"
_COLUMNS_HELD = "id, queue, tries, uid, line, at, connection, lease"
_LEASE = f"UPDATE job SET state = {LEASED}, tries = ?, at = ?, lease = ?, connection = ?, born = ?, uid = ? WHERE id = ?"
_HELD = f"SELECT {_COLUMNS_HELD} FROM job WHERE connection = ? AND lease = ?"
_OF_CONNECTION = f"SELECT {_COLUMNS_HELD} FROM job WHERE connection = ? AND lease <= ? ORDER BY lease LIMIT ?"
_EXTEND = "UPDATE job SET at = ? WHERE id = ?"
_END = "UPDATE job SET state = ?, at = ?, lease = NULL, connection = NULL, born = NULL, uid = NULL, reason = ? WHERE id = ?"
_KILL = f"UPDATE job SET state = {DEAD}, at = ?, reason = ? WHERE id = ?"
_REMOVABLE = f"SELECT {REMOVABLE} FROM message WHERE id = ?"
_DUE = "SELECT id, line FROM job WHERE queue = ? AND state = ? AND at <= ? ORDER BY at LIMIT ?"
_RETRIES = f"SELECT id FROM job WHERE queue = ? AND state = {RETRYING} AND at <= ? ORDER BY at LIMIT ?"
_LATE = f"SELECT {_COLUMNS_HELD} FROM job WHERE queue = ? AND state = {LEASED} AND at <= ? ORDER BY at LIMIT ?"
_SET_STATE = "UPDATE job SET state = ?, at = NULL WHERE id = ?"
_NEXT_AT = "SELECT at FROM job WHERE queue = ? AND state = ? AND at IS NOT NULL ORDER BY at LIMIT 1"
_HOLDERS = (
    "WITH RECURSIVE holder (connection) AS ("
    "SELECT MIN(connection) FROM job WHERE connection IS NOT NULL UNION ALL "
    "SELECT (SELECT MIN(job.connection) FROM job WHERE job.connection > holder.connection AND job.connection IS NOT NULL) "
    "FROM holder WHERE holder.connection IS NOT NULL) "
    "SELECT connection, (SELECT born FROM job WHERE job.connection = holder.connection LIMIT 1) FROM holder WHERE connection IS NOT NULL"
)
_LIST = (
    f"SELECT {COLUMNS}, tries, at, reason, connection, job.uid, state {_JOIN}"
    " WHERE queue = ? AND state = ? AND job.id > ? ORDER BY job.id LIMIT ?"
)
_DEAD_JOB = f"SELECT line FROM job WHERE id = ? AND queue = ? AND state = {DEAD}"
_REVIVE = "UPDATE job SET state = ?, tries = 0, at = NULL, reason = NULL WHERE id = ?"


class Held(NamedTuple):
    """A job with a worker."""

    id: int
    queue: int
    tries: int
    uid: int
    line: int | None
    until: int
    connection: int
    lease: int


class Queues:
    """The jobs of all queues."""

    def __init__(
        self,
        database: Database,
        figures: AllFigures,
        removal: Removal,
        lines: JobLines,
        *,
        announcements: Announcements,
        checksums: Checksums,
    ) -> None:
        self._run = database.execute
        self._run_many = database.executemany
        self._figures = figures
        self._removal = removal
        self._lines = lines
        self._announcements = announcements
        self._checksums = checksums

    def take(
        self, stream: Stream, queue: Queue, worker: Worker, *, count: int, max_bytes: int, lease_ms: int, clock: StoreClock
    ) -> JobPage:
        """Lease at most *count* ready jobs to *worker*. A job that has expired is removed, and a damaged one is a dead letter."""
        figures, now = queue.figures, clock.now()
        until, until_date = clock.leases() + lease_ms, clock.date() + lease_ms
        jobs: list[LeasedJob] = []
        taken: list[tuple[int, ...]] = []
        expired: list[int] = []
        damaged: list[tuple[int, int | None]] = []
        room = max_bytes
        cursor = self._run(_TAKE, (figures.id, count + MAX_PASSED))
        try:
            for row in cursor:
                if len(jobs) >= count:
                    break
                stored, is_right = self._checksums.message_of(row[:WIDTH])
                if not is_right:
                    damaged.append((row[0], row[WIDTH + 1]))
                    continue
                if row[8] is not None and row[8] <= now:
                    expired.append(row[0])
                    continue
                room -= size_of(stored.key, stored.payload)
                if room < 0 and jobs:
                    break
                self._figures.last_lease += 1
                lease, tries = self._figures.last_lease, row[WIDTH] + 1
                taken.append((tries, until, lease, worker.connection, worker.identity, worker.uid, row[0]))
                jobs.append(LeasedJob(lease, queue.settings.name, tries, until_date, stored, lease_ms))
        finally:
            cursor.close()
        if taken:
            self._run_many(_LEASE, taken)
            self._figures.change(figures)
            figures.move(READY, LEASED, len(taken))
            self._figures.add_leases(worker.uid, len(taken))
        if expired:
            stream.figures.removed += self._remove(stream.figures, expired)
        for number, line in damaged:
            self.kill_untaken(figures, number, READY, DAMAGED, date=clock.date(), line=line)
        # Others may follow; and the next one of the line of a job that has ended is ready only now.
        return JobPage(jobs, not jobs and bool(expired or damaged))

    def held(self, worker: Worker, queue: Queue, lease: int, now: int) -> Held | None:
        """Return the job that *worker* has by *lease*, or None if the lease is over or of another one."""
        for row in self._run(_HELD, (worker.connection, lease)).fetchall():
            found = Held(*row)
            if found.uid == worker.uid and found.queue == queue.figures.id and found.until > now:
                return found
        return None

    def finish(self, stream: StreamFigures, held: Held) -> None:
        """Remove a job that has been done, with its message."""
        self._remove(stream, [held.id])

    def extend(self, held: Held, until: int) -> None:
        """Set the end of a lease."""
        self._run(_EXTEND, (until, held.id))

    def retry(self, queue: QueueFigures, held: Held, *, tries: int, wait: int, reason: str, clock: StoreClock) -> None:
        """End a try: the job is ready after *wait* milliseconds, or dead after *tries* tries."""
        if held.tries >= tries:
            self.kill(queue, held, f"{held.tries} tries: {reason}", clock.date())
        elif wait > 0:
            self._end(queue, held, RETRYING, at=clock.now() + wait, reason=reason)
        else:
            self._end(queue, held, READY, reason=reason)

    def kill(self, queue: QueueFigures, held: Held, reason: str, date: int) -> None:
        """Make a job a dead letter."""
        self._end(queue, held, DEAD, at=date, reason=reason)
        self._announcements.add_letter(held.id)
        if held.line is not None:
            self._lines.advance(queue, held.line)

    def kill_untaken(self, queue: QueueFigures, number: int, state: int, reason: str, *, date: int, line: int | None) -> None:
        """Make a job of *line* that no worker has, and that is in *state*, a dead letter."""
        self._figures.change(queue)
        self._run(_KILL, (date, reason, number))
        queue.move(state, DEAD)
        self._announcements.add_letter(number)
        if line is not None:
            self._lines.advance(queue, line)

    def of_connection(self, connection: int, max_rows: int, last_lease: int) -> list[Held]:
        """Return at most *max_rows* jobs that the worker *connection* has by leases up to *last_lease*."""
        return [Held(*row) for row in self._run(_OF_CONNECTION, (connection, last_lease, max_rows)).fetchall()]

    def release(self, connection: int, until: int, max_rows: int, configured: Mapping[int, QueueSettings], clock: StoreClock) -> Released:
        """End the tries of a worker that has disconnected; see Engine.release. *configured* has the settings of queues by number."""
        last = until or self._figures.last_lease
        queues: set[str] = set()
        jobs = self.of_connection(connection, max_rows, last)
        for held in jobs:
            queue = self._figures.queues[held.queue]
            settings = configured.get(queue.id)
            most, wait = (held.tries + 1, 0) if settings is None else (settings.tries, backoff_ms(settings, held))
            self.retry(queue, held, tries=most, wait=wait, reason=WORKER_DIED, clock=clock)
            queues.add(queue.name)
        return Released(queues, len(jobs), last if len(jobs) >= max_rows else 0)

    def holders(self) -> dict[int, int]:
        """Return the connections that have jobs, and the identity of each."""
        return dict(self._run(_HOLDERS).fetchall())

    def due(self, queue: QueueFigures, now: int, date: int, max_rows: int) -> int:
        """Make jobs ready whose delay has ended, at most *max_rows*, and return how many were looked at."""
        looked = 0
        for waiting, time in ((DELAYED, now), (DATED, date)):
            delayed = self._run(_DUE, (queue.id, waiting, time, max_rows - looked)).fetchall()
            looked += len(delayed)
            for number, line in delayed:
                self._figures.change(queue)
                state = BLOCKED if line is not None and self._lines.is_busy(queue, line) else READY
                self._run(_SET_STATE, (state, number))
                queue.move(waiting, state)
        retries = self._run(_RETRIES, (queue.id, now, max_rows - looked)).fetchall()
        if retries:
            self._figures.change(queue)
            self._run_many(_SET_STATE, [(READY, number) for (number,) in retries])
            queue.move(RETRYING, READY, len(retries))
        return looked + len(retries)

    def late(self, queue: QueueFigures, now: int, max_rows: int) -> list[Held]:
        """Return at most *max_rows* jobs whose lease has ended."""
        return [Held(*row) for row in self._run(_LATE, (queue.id, now, max_rows)).fetchall()]

    def next_ms(self, queue: QueueFigures, now: int, date: int, leases: int) -> list[int]:
        """Return the times at which jobs of *queue* will be ready again. The three times are the present by each clock."""
        clocks = {DELAYED: now, RETRYING: now, DATED: date, LEASED: leases}
        rows = [(self._run(_NEXT_AT, (queue.id, state)).fetchall(), now - time) for state, time in clocks.items()]
        return [row[0][0] + shift for row, shift in rows if row]

    def list(self, queue: Queue, state: JobState, after_seq: int, *, count: int, max_bytes: int, clock: StoreClock) -> list[JobInfo]:
        """Return at most *count* jobs in *state* after *after_seq*, in the order of their numbers."""
        after = message_id(queue.figures.stream, after_seq)
        found: list[JobInfo] = []
        cursors = [self._run(_LIST, (queue.figures.id, each, after, count)) for each in STATES[state]]
        room, date = max_bytes, clock.date()
        shifts = {LEASED: date - clock.leases(), DELAYED: date - clock.now(), RETRYING: date - clock.now()}
        try:
            for row in heapq.merge(*cursors, key=itemgetter(0)):
                stored, is_right = self._checksums.message_of(row[:WIDTH])
                room -= size_of(stored.key, stored.payload)
                if len(found) >= count or (room < 0 and found):
                    break
                tries, at, reason, connection, uid, number = row[WIDTH:]
                holder = Worker(connection, uid) if connection is not None else None
                why = reason or "" if is_right else DAMAGED
                found.append(JobInfo(state, stored, tries, at + shifts.get(number, 0) if at else 0, why, holder))
        finally:
            for cursor in cursors:
                cursor.close()
        return found

    def revive(self, queue: QueueFigures, seqs: Sequence[int]) -> int:
        """Make dead letters ready again, with no tries, and return how many there were."""

        def ready(number: int, line: int | None) -> None:
            self._figures.change(queue)
            state = BLOCKED if line is not None and self._lines.is_busy(queue, line) else READY
            self._run(_REVIVE, (state, number))
            queue.move(DEAD, state)

        return self._each_dead(queue, seqs, ready)

    def drop_dead(self, stream: StreamFigures, queue: QueueFigures, seqs: Sequence[int]) -> int:
        """Remove dead letters, and return how many there were."""
        return self._each_dead(queue, seqs, lambda number, _line: self._remove(stream, [number]))

    def _each_dead(self, queue: QueueFigures, seqs: Sequence[int], action: Callable[[int, int | None], object]) -> int:
        """Call *action* with number and line of each dead letter in *seqs*, and return how many there were."""
        count = 0
        for seq in seqs:
            number = message_id(queue.stream, seq)
            for (line,) in self._run(_DEAD_JOB, (number, queue.id)).fetchall():
                action(number, line)
                count += 1
        return count

    def _end(self, queue: QueueFigures, held: Held, state: int, *, at: int | None = None, reason: str) -> None:
        """End the lease of a job, which gets another state."""
        text = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")
        self._run(_END, (state, at, text, held.id))
        self._figures.change(queue)
        queue.move(LEASED, state)
        self._figures.add_leases(held.uid, -1)

    def _remove(self, stream: StreamFigures, ids: Sequence[int]) -> int:
        """Remove the messages with the numbers *ids*, with their jobs."""
        rows = [Removable(*row) for number in ids for row in self._run(_REMOVABLE, (number,)).fetchall()]
        return self._removal.remove(stream, rows)


def backoff_ms(settings: QueueSettings, held: Held) -> int:
    """Return the time between the try of *held* and the next one."""
    return round(settings.backoff[min(held.tries, len(settings.backoff)) - 1] * 1000)


def checked_ms(wait_ms: int, least: int) -> int:
    """Return *wait_ms*. Raises EngineError if it is less than *least*, or too long."""
    if not least <= wait_ms <= MAX_DELAY_SECONDS * 1000:
        raise EngineError("EINVAL", f"invalid time of {wait_ms / 1000:g} s: must be {least / 1000:g} to {MAX_DELAY_SECONDS:.0f} s")
    return wait_ms
