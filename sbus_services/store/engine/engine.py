"""The store on disk, without the bus: streams, last values, durable readers and queues. Spec: sbus-store(8).

Every method is an operation: it succeeds as a whole, or raises EngineError and changes nothing. On its own it is a transaction, on the disk
when it returns; between :meth:`Engine.begin` and :meth:`Engine.commit` it is a part of one. A committer does that for many callers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sbus.protocol.printable import printable
from sbus_programs.config.store import StoreSettings
from sbus_programs.config.users import ChargedUsers, SubordinateIds
from sbus_services.store.engine.checksums import Checksums
from sbus_services.store.engine.clocks import StoreClock
from sbus_services.store.engine.continuity import LOST, Continuity, RunStart, keep_clock, start_clock
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.intake import DiskSpace, Intake
from sbus_services.store.engine.messages import (
    NOWHERE,
    EngineError,
    Gap,
    JobInfo,
    JobPage,
    JobState,
    LastValues,
    NewMessage,
    Page,
    Places,
    Purged,
    PutResult,
    Released,
    Rest,
    Stored,
    StoreStatistics,
    Sweep,
    Taken,
    Worker,
)
from sbus_services.store.engine.put_ids import PutIds
from sbus_services.store.engine.queues import RETRIED, Held, Queues, backoff_ms, checked_ms
from sbus_services.store.engine.reading import Readers, Reading
from sbus_services.store.engine.reconfiguration import Reconfiguration
from sbus_services.store.engine.removal import Announcements, Purging, Removal
from sbus_services.store.engine.retention import Retention
from sbus_services.store.engine.statistics import store_statistics
from sbus_services.store.engine.stream import JobLines, KeyMap, Queue, Stream
from sbus_services.store.engine.unpublished import Unpublished

MIN_FREE_BYTES = 16 << 20
"""Free space of the disk below which nothing is put: acknowledging and removing needs some too."""


class Engine:
    """The streams and queues in one file. One thread at a time calls its methods.

    *clock* has its times, which continue at a restart.
    """

    def __init__(self, path: Path, settings: StoreSettings, clock: StoreClock, min_free_bytes: int = MIN_FREE_BYTES) -> None:
        """Open or create the file *path*. On a full disk, a file that exists is only read until :meth:`begin` finds room.

        Raises:
            EngineError: EIO if it is damaged: then it was renamed, and the error names the new name. EACCES if it cannot be opened.
                EBUSY if another process uses it. EINVAL if it is of another program, or of a newer version. ENOSPC if the disk is full
                and the file must be created or converted.
        """
        self.clock = clock
        self._settings = settings
        self._lost: dict[str, int] = {}
        """The gaps of streams that have lost messages, for the next sweep."""
        self.database = Database(path)
        try:
            with self.database.operation():
                self._figures = AllFigures(self.database)
                start_clock(self._figures, self.clock)
                self._space = DiskSpace(self.database, min_free_bytes)
                self._continuity = Continuity(self.database, self._figures)
                self._checksums = Checksums(self.database, self._figures)
                self._unpublished = Unpublished(self.database, self._figures, self._checksums)
                self._readers = Readers(self.database, self._figures)
                self._lines = JobLines(self.database)
                self._ids = PutIds(self.database, self._figures)
                self._announcements = Announcements(self.database, self._figures, self._checksums)
                self._removal = Removal(self.database, self._figures, self._lines, self._announcements, self._checksums)
                self._intake = Intake(self.database, self._figures, self._ids, self._removal, self._lines)
                self._reading = Reading(self.database, self._checksums)
                self._queues = Queues(
                    self.database, self._figures, self._removal, self._lines, announcements=self._announcements, checksums=self._checksums
                )
                self._retention = Retention(
                    self.database,
                    self._figures,
                    intake=self._intake,
                    removal=self._removal,
                    queues=self._queues,
                    ids=self._ids,
                    announcements=self._announcements,
                    checksums=self._checksums,
                )
                self._purging = Purging(self.database, self._figures, self._removal, self._readers, self._ids)
            self.run_start = RunStart(self.database, self._begin_run, self._only_read)
            self.run_start.attempt()
        except BaseException:
            self.database.close()
            raise

    def configure(self, settings: StoreSettings) -> None:
        """Use *settings* from now on. Streams and queues that are not in them keep their messages. Raises EngineError."""
        with self.database.operation():
            reconfiguration = Reconfiguration(self.database, self._figures)
            streams = reconfiguration.apply(settings)
            for each in streams.values():
                if self._continuity.lost(each.figures):
                    self._intake.add_gap(each, b"", 0, LOST, self.clock.date())
                    self._lost[each.figures.name] = each.figures.last_seq
        self._settings = settings
        self._streams = streams
        self.keys = KeyMap(settings.streams)

    def charge(self, ids: SubordinateIds) -> None:
        """Charge the user who has subordinate *ids*, subuid(5), for messages and jobs of these from now on. Raises EngineError."""
        with self.database.operation():
            self._figures.charge(ChargedUsers(ids))

    def close(self) -> None:
        """Close the file. A transaction that is open is undone."""
        self._continuity.close()
        self.database.close()

    def begin(self) -> None:
        """Begin a transaction of several operations. Raises EngineError."""
        self.run_start.attempt_again()
        self.database.begin()

    def commit(self) -> None:
        """Commit it: then all of it is on the disk. Raises EngineError; then nothing of it is."""
        self.database.commit()

    def rollback(self) -> None:
        """Undo it."""
        self.database.rollback()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open. After an error of the disk it may have ended, and all of it is undone."""
        return self.database.in_transaction

    def put(self, stream: str, message: NewMessage) -> PutResult:
        """Store *message*.

        Raises:
            EngineError: ENOENT if the stream is not configured. EINVAL or EMSGSIZE if the stream cannot have such a message. EDQUOT above a
                limit of the user or of keys. ENOSPC if the disk is full, or the queue of the stream.
        """
        with self.database.operation():
            (result,) = self._put_many(stream, [message])
        if isinstance(result, EngineError):
            raise result
        return result

    def put_many(self, stream: str, messages: Sequence[NewMessage]) -> list[PutResult | EngineError]:
        """Store *messages* in their order; the result has an error for each that is rejected. Raises EngineError if none can be stored."""
        with self.database.operation():
            return self._put_many(stream, messages)

    def add_gap(self, stream: str, pattern: bytes, count: int, reason: str, *, is_expected: bool = False) -> None:
        """Store that at most *count* messages that match *pattern* are missing; 0: an unknown number. Raises EngineError.

        *is_expected*: it counts as acknowledged.
        """
        with self.database.operation():
            self._space.check()
            self._intake.add_gap(self._stream(stream), pattern, max(count, 0), reason, self.clock.date(), is_expected=is_expected)

    def read(self, stream: str, from_seq: int, max_messages: int, max_bytes: int, pattern: bytes = b"") -> Page:
        """Return messages and gaps from *from_seq* on, as stored; 0 means from the first that is kept.

        It looks at a bounded number of messages: ``next_seq`` says where to go on. One message is returned even if it is longer than
        *max_bytes*. If messages from *from_seq* on were removed by retention, the page begins with a gap. Raises EngineError: ENOENT.
        """
        with self.database.operation():
            figures = self._stream(stream).figures
            page = self._reading.read(
                figures,
                from_seq,
                max_messages=max_messages,
                max_bytes=max_bytes,
                pattern=pattern,
                now=self.clock.now(),
                date=self.clock.date(),
            )
            return replace(page, items=[each if isinstance(each, Gap) else self._dated(each) for each in page.items])

    def last(
        self, stream: str, pattern: bytes = b"", after_key: bytes | None = None, max_messages: int = 1_000, max_bytes: int = 1 << 20
    ) -> LastValues:
        """Return the newest message of each key that *pattern* matches, in the order of the keys, after the key *after_key*.

        It looks at a bounded number of keys: ``next_key`` says where to go on. Raises EngineError: ENOENT.
        """
        with self.database.operation():
            figures = self._stream(stream).figures
            found = self._reading.last(
                figures, pattern, after_key=after_key, max_messages=max_messages, max_bytes=max_bytes, now=self.clock.now()
            )
            return LastValues([self._dated(each) for each in found.items], found.next_key)

    def seq_at(self, stream: str, time_ms: int) -> int:
        """Return the number of the first message that was stored at *time_ms* or later, or the next number. Raises EngineError: ENOENT.

        If the clock was set back meanwhile, it is the number of one of the messages around that time.
        """
        with self.database.operation():
            return self._reading.seq_at(self._stream(stream).figures, time_ms)

    @property
    def run(self) -> int:
        """The number of this run, by which numbers of another file are recognized; that of the last run until this one has begun."""
        return self._continuity.run

    def valid_from(self, stream: str, from_seq: int, run: int = 0) -> int:
        """Return where a reader continues: at *from_seq*, a number of *run*, or before, if the messages there are not of this file.

        Raises EngineError: ENOENT.
        """
        with self.database.operation():
            return self._continuity.valid_from(self._stream(stream).figures, from_seq, run)

    def first_seq(self, stream: str) -> int:
        """Return the number of the first message, or the next number if there is none. Raises EngineError: ENOENT."""
        with self.database.operation():
            return self._reading.first_seq(self._stream(stream).figures)

    def last_seq(self, stream: str) -> int:
        """Return the number of the newest message that was ever stored, or 0. Raises EngineError: ENOENT."""
        return self._stream(stream).figures.last_seq

    def reader(self, stream: str, uid: int, name: str) -> int | None:
        """Return the next number of the reader *name* of *uid*, or None if the reader does not exist. Raises EngineError: ENOENT."""
        with self.database.operation():
            return self._readers.get(self._stream(stream).figures, uid, name)

    def set_reader(self, stream: str, uid: int, name: str, seq: int) -> None:
        """Set the number that a reader reads next; a new one is added. Raises EngineError: ENOENT, EINVAL, EDQUOT if there are too many."""
        with self.database.operation():
            self._readers.set(self._stream(stream).figures, uid, name, seq, self._settings.limits.readers)

    def drop_reader(self, stream: str, uid: int, name: str) -> bool:
        """Remove a reader, and return whether there was one. Raises EngineError: ENOENT."""
        with self.database.operation():
            return self._readers.drop(self._stream(stream).figures, uid, name)

    def readers(self, stream: str, uid: int | None = None, max_readers: int = 1_000) -> list[tuple[int, str, int]]:
        """Return uid, name and next number of the readers of *uid*, or of all users. Raises EngineError: ENOENT."""
        with self.database.operation():
            return self._readers.list(self._stream(stream).figures, uid, max_readers)

    def forget(self, stream: str, key: bytes, uid: int | None = None, from_seq: int = 0, max_rows: int = 1_000) -> Purged:
        """Remove the messages of *key*; with *uid* only those that this user has stored. Raises EngineError: ENOENT."""
        with self.database.operation():
            return self._purging.forget(self._stream(stream).figures, key, uid, from_seq, max_rows)

    def purge(self, stream: str, before_seq: int | None = None, pattern: bytes = b"", max_rows: int = 1_000, from_seq: int = 0) -> Purged:
        """Remove messages and gaps before *before_seq* (None: all) that *pattern* matches, also of a stream that is not configured.

        It looks at *max_rows* rows from *from_seq* on: ``more`` says that there are others, from ``next_seq`` on. A stream that is not
        configured is forgotten when it is empty. Raises EngineError: ENOENT.
        """
        with self.database.operation():
            configured = self._streams.get(stream)
            figures = self._known(stream) if configured is None else configured.figures
            return self._purging.purge(figures, before_seq, pattern, from_seq, max_rows, drop=configured is None)

    def acknowledge(self, uid: int, max_rows: int = 1_000) -> int:
        """Let *uid* acknowledge gaps and damaged messages, at most *max_rows*, and return how many there were."""
        with self.database.operation():
            return self._intake.acknowledge_gaps(uid, max_rows) or self._checksums.acknowledge(max_rows)

    def take(self, queue: str, worker: Worker, max_jobs: int, max_bytes: int, lease_ms: int | None = None) -> JobPage:
        """Return jobs that *worker* has until their leases end: by default after the lease of the queue. It looks at a bounded number.

        Raises:
            EngineError: ENOENT if the queue is not configured. EINVAL for a lease that is too long. EDQUOT if the user has too many.
        """
        with self.database.operation():
            stream, found = self._queue(queue)
            length = round(found.settings.lease * 1000) if lease_ms is None else checked_ms(lease_ms, 1)
            count = min(max(max_jobs, 1), self._figures.lease_room(worker.uid, self._settings.limits.leases))
            page = self._queues.take(stream, found, worker, count=count, max_bytes=max_bytes, lease_ms=length, clock=self.clock)
            return JobPage([replace(each, stored=self._dated(each.stored)) for each in page.jobs], page.more)

    def ready(self, queue: str) -> int:
        """Return the number of jobs that workers can take now. Raises EngineError: ENOENT."""
        return self._queue(queue)[1].figures.ready

    def ack(self, queue: str, leases: Sequence[int], worker: Worker) -> list[bool]:
        """Remove jobs that are done. False for a lease that is over, or that another worker has. Raises EngineError: ENOENT."""
        stream, _ = self._queue(queue)
        return self._each_held(queue, leases, worker, lambda held: self._queues.finish(stream.figures, held))

    def retry(self, queue: str, leases: Sequence[int], worker: Worker, after_ms: int | None = None, reason: str = "") -> list[bool]:
        """End a try of jobs: they are ready again after *after_ms*, by default after the backoff of the queue; after the last try, dead.

        False as in ``ack``. Raises EngineError: ENOENT, or EINVAL for a time that is too long.
        """
        _, found = self._queue(queue)
        settings = found.settings
        if after_ms is not None:
            checked_ms(after_ms, 0)

        def end(held: Held) -> None:
            wait = backoff_ms(settings, held) if after_ms is None else after_ms
            self._queues.retry(found.figures, held, tries=settings.tries, wait=wait, reason=reason or RETRIED, clock=self.clock)

        return self._each_held(queue, leases, worker, end)

    def fail(self, queue: str, leases: Sequence[int], worker: Worker, reason: str) -> list[bool]:
        """Make jobs dead letters. False as in ``ack``. Raises EngineError: ENOENT."""
        _, found = self._queue(queue)
        date = self.clock.date()
        return self._each_held(queue, leases, worker, lambda held: self._queues.kill(found.figures, held, reason, date))

    def extend(self, queue: str, leases: Sequence[int], worker: Worker, lease_ms: int | None = None) -> list[bool]:
        """Let leases end later: after *lease_ms* from now. False as in ``ack``. Raises EngineError: ENOENT, EINVAL."""
        _, found = self._queue(queue)
        until = self.clock.leases() + checked_ms(round(found.settings.lease * 1000) if lease_ms is None else lease_ms, 1)
        return self._each_held(queue, leases, worker, lambda held: self._queues.extend(held, until))

    def release(self, connection: int, until: int = 0, max_rows: int = 256) -> Released:
        """End the tries of jobs of a worker that has disconnected. The jobs wait for the backoff, or are dead.

        So a job that kills its workers does not kill all of them at once. It ends at most *max_rows*, and has to be called again with
        ``until`` of its result, unless that is 0: a later worker whose connection has the same number keeps its jobs. Raises EngineError.
        """
        with self.database.operation():
            settings = {each.queue.figures.id: each.queue.settings for each in self._streams.values() if each.queue is not None}
            return self._queues.release(connection, until, max_rows, settings, self.clock)

    def lease_holders(self) -> dict[int, int]:
        """Return the connections that have jobs, and the identity of each, 0 if that is unknown. Raises EngineError."""
        with self.database.operation():
            return self._queues.holders()

    def leases_of(self, queue: str, worker: Worker, max_leases: int = 1_000) -> set[int]:
        """Return the leases that *worker* has in *queue*. Raises EngineError: ENOENT."""
        with self.database.operation():
            _, found = self._queue(queue)
            held = self._queues.of_connection(worker.connection, max_leases, self._figures.last_lease)
            return {each.lease for each in held if (each.queue, each.uid) == (found.figures.id, worker.uid)}

    def sweep(self, max_rows: int = 1_000, places: Places = NOWHERE) -> Sweep:
        """Do what time requires: ends of delays and leases, expiry, retention. Call it when ``next_ms`` of the last one has come, and
        after ``retry``, ``fail`` and ``release``, which can make dead letters.

        Dead letters and ended values after *places* are returned, until ``note_taken`` has their places. Raises EngineError.
        """
        with self.database.operation():
            if self.run_start.refusal is not None:
                raise self.run_start.refusal
            keep_clock(self._figures, self.clock)
            self._continuity.keep()
            damaged = self._checksums.note(self.clock.date())
            sweep = self._retention.sweep(self._streams, self.clock, max_rows, places, is_full=self._space.is_short())
            lost, self._lost = self._lost, {}
            return replace(sweep, damaged=damaged, lost=lost)

    def jobs(self, queue: str, state: JobState, after_seq: int = 0, max_jobs: int = 100, max_bytes: int = 1 << 20) -> list[JobInfo]:
        """Return jobs in *state* with numbers above *after_seq*, in the order of their numbers. Raises EngineError: ENOENT."""
        with self.database.operation():
            source, count = self._queue(queue)[1], max(max_jobs, 1)
            found = self._queues.list(source, state, after_seq, count=count, max_bytes=max_bytes, clock=self.clock)
            return [replace(each, stored=self._dated(each.stored)) for each in found]

    def revive(self, queue: str, seqs: Sequence[int]) -> int:
        """Make dead letters ready again, as new jobs, and return how many there were. Raises EngineError: ENOENT."""
        with self.database.operation():
            return self._queues.revive(self._queue(queue)[1].figures, seqs)

    def drop_dead(self, queue: str, seqs: Sequence[int]) -> int:
        """Remove dead letters, and return how many there were. Raises EngineError: ENOENT."""
        with self.database.operation():
            stream, found = self._queue(queue)
            return self._queues.drop_dead(stream.figures, found.figures, seqs)

    def statistics(self, max_users: int = 1_000) -> StoreStatistics:
        """Return the figures of all streams and queues, of each stream those of at most *max_users* users with the most bytes."""
        with self.database.operation():
            found = store_statistics(
                self.database,
                self._figures,
                reading=self._reading,
                readers=self._readers,
                streams=self._streams,
                max_users=max_users,
                unpublished=self._unpublished,
                checksums=self._checksums,
            )
            return replace(found, is_date_doubted=self.clock.is_doubted)

    def _begin_run(self) -> None:
        """Write what a run begins with. Raises EngineError."""
        keep_clock(self._figures, self.clock)
        # A lease of another file, or of a later state of this one, is not valid here.
        self._figures.raise_last_lease(self.clock.date() // 1000 << 20 | secrets.randbits(20))
        self.configure(self._settings)
        self._continuity.begin()

    def _only_read(self) -> None:
        """Use what the file has of the settings."""
        self._streams = Reconfiguration(self.database, self._figures).known(self._settings)
        self.keys = KeyMap(self._settings.streams)

    def _dated(self, stored: Stored) -> Stored:
        """Return a message with the date at which it expires."""
        if not stored.expires_ms:
            return stored
        return replace(stored, expires_ms=stored.expires_ms + self.clock.date() - self.clock.now())

    def _put_many(self, stream: str, messages: Sequence[NewMessage]) -> list[PutResult | EngineError]:
        self._space.check()
        date = self.clock.date()
        self.clock.stored(date)
        return self._intake.put(self._stream(stream), messages, self.clock.now(), date)

    def put_unpublished(self, stream: str, messages: Sequence[NewMessage]) -> list[PutResult | EngineError]:
        """Do as ``put_many``, and note that the messages are not yet published."""
        with self.database.operation():
            outcomes = self._put_many(stream, messages)
            self._unpublished.add(self._stream(stream).figures, messages, outcomes)
            return outcomes

    def note_taken(self, taken: Taken) -> None:
        """Remove the notes of messages that the bus has taken."""
        with self.database.operation():
            for name, seq in taken.streams.items():
                if name in self._figures.streams:
                    self._unpublished.done(self._figures.streams[name], seq)
            if taken.places != NOWHERE:
                self._announcements.done(taken.places)
            if taken.never:
                self._unpublished.add_never(taken.never)

    def next_unpublished(self, after: Mapping[str, int], max_messages: int = 256) -> Rest | None:
        """Return messages of a stream that are noted as not published, with numbers above those of *after*; None if there are none."""
        with self.database.operation():
            return self._unpublished.next(after, max_messages)

    def _each_held(self, queue: str, leases: Sequence[int], worker: Worker, action: Callable[[Held], None]) -> list[bool]:
        """Call *action* with each job that *worker* has by *leases*, and return which leases were valid."""
        with self.database.operation():
            _, found = self._queue(queue)
            now, results = self.clock.leases(), []
            for lease in leases:
                held = self._queues.held(worker, found, lease, now)
                if held is not None:
                    action(held)
                results.append(held is not None)
            return results

    def _stream(self, name: str) -> Stream:
        """Return a stream of the configuration. Raises EngineError."""
        if name not in self._streams:
            raise self._unknown("stream", name, is_configured=self._settings.stream(name) is not None)
        return self._streams[name]

    def _known(self, name: str) -> StreamFigures:
        """Return the figures of a stream of the file. Raises EngineError."""
        if name not in self._figures.streams:
            raise self._unknown("stream", name, is_configured=False)
        return self._figures.streams[name]

    def _queue(self, name: str) -> tuple[Stream, Queue]:
        """Return a queue of the configuration, with its stream. Raises EngineError."""
        settings = self._settings.queue(name)
        stream = None if settings is None else self._streams.get(settings.stream)
        if stream is None or stream.queue is None:
            raise self._unknown("queue", name, is_configured=settings is not None)
        return stream, stream.queue

    def _unknown(self, kind: str, name: str, *, is_configured: bool) -> EngineError:
        """Return the error about a stream or queue that the file does not have; the disk can be too full to add it."""
        if is_configured and self.run_start.refusal is not None:
            return self.run_start.refusal
        return EngineError("ENOENT", f"unknown {kind} '{printable(name, 80)}'")
