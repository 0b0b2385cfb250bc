"""What the calls of the store share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from sbus.protocol.keys import pattern_matches
from sbus_programs.config.store import StoreLimits
from sbus_programs.config.users import ChargedUsers
from sbus_services.store.access import Access, VouchRight
from sbus_services.store.calls.responses import CallError
from sbus_services.store.engine.clocks import StoreClock
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import LeasedJob, NewMessage, Released, Worker
from sbus_services.store.operation_queue import SERVICE, OperationQueue, QueuedOperation
from sbus_services.store.publications import Publications, Published, Routes, StorePublisher
from sbus_services.store.workers import Holder, TakeLine, Workers

MAX_COMPARISONS = 1_000
"""Comparisons of a pattern with a key for the messages of one commit. Above that all waiting calls look for themselves."""


class StreamNews:
    """The waiting calls of each stream, by the pattern that they wait for."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, dict[bytes, set[asyncio.Event]]] = defaultdict(dict)

    def __len__(self) -> int:
        """Return the number of calls that wait."""
        return sum(len(events) for patterns in self._waiting.values() for events in patterns.values())

    @contextmanager
    def watched(self, stream: str, pattern: bytes) -> Iterator[asyncio.Event]:
        """Inside the context, the event is set when *stream* has a new message that matches *pattern*."""
        event = asyncio.Event()
        patterns = self._waiting[stream]
        patterns.setdefault(pattern, set()).add(event)
        try:
            yield event
        finally:
            patterns[pattern].discard(event)
            if not patterns[pattern]:
                del patterns[pattern]

    def arrived(self, stream: str, keys: Collection[bytes]) -> None:
        """Wake the calls that wait for messages with *keys*; without keys, all of the stream: a gap was stored."""
        patterns = self._waiting.get(stream)
        if not patterns:
            return
        distinct = set(keys)
        wakes_all = not distinct or len(patterns) * len(distinct) > MAX_COMPARISONS
        for pattern, events in patterns.items():
            if wakes_all or not pattern or any(pattern_matches(pattern, key) for key in distinct):
                for event in events:
                    event.set()

    def wake_all(self) -> None:
        """Wake all calls."""
        for stream in tuple(self._waiting):
            self.arrived(stream, ())


class Allowance:
    """At most *limit* of one thing, *what*, for each user that is *charged*. *refusals* counts by *name*."""

    def __init__(self, name: str, what: str, limit: int, *, refusals: Counter[str], charged: ChargedUsers) -> None:
        self.limit = limit
        self._name = name
        self._what = what
        self._refusals = refusals
        self._charged = charged
        self._used: Counter[int] = Counter()

    @contextmanager
    def held(self, uid: int, amount: int = 1) -> Iterator[None]:
        """Charge *amount* for *uid* inside the context. Raises CallError (EDQUOT)."""
        user = self._charged.of(uid)
        if self._used[user] + amount > self.limit:
            self._refusals[self._name] += 1
            words = f"user {user} has {self._used[user]} {self._what}, and asks for {amount} more; the limit is {self.limit}"
            raise CallError("EDQUOT", words)
        self._used[user] += amount
        try:
            yield
        finally:
            self._used[user] -= amount
            if not self._used[user]:
                del self._used[user]


MAX_CALLS = 512
"""Calls of one user that run at the same time, without those that wait for messages or jobs."""


class StoreContext:
    """The parts of one store. *schedule_sweep* gets a time of *clock* at which the next sweep is due, 0 for at once."""

    def __init__(
        self,
        operations: OperationQueue[Engine],
        access: Access,
        vouch_right: VouchRight,
        *,
        routes: Routes,
        publisher: StorePublisher,
        report: Callable[[str], None],
        counts: Counter[str],
        clock: StoreClock,
        run: Callable[[], int],
        schedule_sweep: Callable[[int], None],
        charged: ChargedUsers,
    ) -> None:
        self.operations = operations
        self.access = access
        self.vouch_right = vouch_right
        self.routes = routes
        self.publisher = publisher
        self.counts = counts
        self.clock = clock
        self._run = run
        self.schedule_sweep = schedule_sweep
        self.charged = charged
        self.news = StreamNews()
        self.published = Published()
        self.publications = Publications(publisher, operations, self.published, counts, routes=lambda: self.routes, report=report)
        self.workers = Workers(self._worker_gone)
        self.lines: dict[str, TakeLine] = {}
        self.is_stopping = False
        self.on_stored: Callable[[str, Sequence[bytes]], None] = lambda _stream, _keys: None
        """Called after :meth:`stored`."""
        self.on_worker_gone: Callable[[int], None] = lambda _connection: None
        """Called with the number of a connection that could have jobs and has ended."""
        self.on_settled: Callable[[int, Sequence[int]], None] = lambda _connection, _leases: None
        """Called when a connection has ended leases, or time has."""
        self.refusals: Counter[str] = Counter()
        """Requests that a limit of a user refused, by limit."""
        limits = routes.settings.limits
        allowance = partial(Allowance, refusals=self.refusals, charged=charged)
        self.waiting = allowance("waiting_calls", "waiting calls", limits.waiting_calls)
        self.pending = allowance("pending_bytes", "bytes of messages that are not yet on disk", limits.pending_bytes)
        self.calls = allowance("calls", "calls that run", MAX_CALLS)

    @property
    def run(self) -> int:
        """The number of this run of the store, which responses name with the numbers of messages. A full disk at the start delays it."""
        return self._run()

    def reconfigure(self, routes: Routes) -> None:
        """Apply other settings."""
        self.routes = routes
        limits: StoreLimits = routes.settings.limits
        self.waiting.limit, self.pending.limit = limits.waiting_calls, limits.pending_bytes
        self.news.wake_all()
        for name in tuple(self.lines):
            self.jobs_ready(name)

    def line(self, queue: str) -> TakeLine:
        """Return the line of calls that wait for jobs of a configured queue."""
        if queue not in self.lines:
            self.lines[queue] = TakeLine(self.charged)
        return self.lines[queue]

    def jobs_ready(self, queue: str, jobs: int = 1) -> None:
        """Note that a queue may have about *jobs* jobs for those that wait."""
        if queue in self.lines:
            self.lines[queue].ready(jobs)

    def stored(self, stream: str, keys: Sequence[bytes]) -> None:
        """Note that messages with *keys* were committed, or without keys a gap."""
        self.news.arrived(stream, keys)
        self.on_stored(stream, keys)
        queue = self.routes.queue_of(stream)
        if queue is not None and keys:
            self.jobs_ready(queue.name, len(keys))

    def value_ended(self, stream: str, message: NewMessage) -> tuple[int, int]:
        """Publish that a key has no value any more, by an empty message, which is not stored.

        Return 1 if that needs no further attempt, and 1 if it can never be published.
        """
        settings = self.routes.settings.stream(stream)
        done, never = 1, 0
        if settings is not None and settings.publish:
            # Not before the value that has ended, which may still wait.
            done, never = self.publisher.publish_many([message]) if self.publications.is_live else (0, 0)
            self.counts["values_ended"] += done
        if done:
            self.on_stored(stream, [message.key])
        return done, never

    def waits(self, uid: int, seconds: float) -> AbstractContextManager[None]:
        """Charge a call that waits up to *seconds*. Raises CallError (EDQUOT)."""
        return self.waiting.held(uid) if seconds else nullcontext()

    def stop(self) -> None:
        """Answer the calls that wait: the store restarts."""
        self.is_stopping = True
        for line in self.lines.values():
            line.close()
        self.news.wake_all()

    def _worker_gone(self, holder: Holder) -> None:
        """End the tries of the jobs of a connection, before everything that waits for the committer."""
        connection = holder.connection
        self.operations.submit_now(lambda engine: engine.release(connection), partial(self._released, connection))
        for queue in holder.queues:
            self.jobs_ready(queue)  # a take of this connection that finds it gone says nothing about the queue
        self.on_worker_gone(connection)

    def _released(self, connection: int, performed: QueuedOperation[Engine]) -> None:
        """Note that jobs of *connection* were released, and release more of them in turn with what others want."""
        if performed.error is not None:
            return  # the ends of the leases release them
        released: Released = performed.result
        self.counts["released"] += released.jobs
        for queue in released.queues:
            self.jobs_ready(queue)  # a backoff can be 0
        self.schedule_sweep(0)
        if released.until:
            with suppress(CallError):  # the store stops, and the next start releases them
                again = partial(self._released, connection)
                self.operations.submit(SERVICE, lambda engine: engine.release(connection, released.until), again, released.jobs)

    def give_back(self, queue: str, worker: Worker, jobs: Sequence[LeasedJob]) -> None:
        """Make jobs ready again that their worker will not get, because its call has ended."""
        self.counts["given_back"] += len(jobs)
        leases = [job.lease for job in jobs]
        self.operations.submit_now(lambda engine: engine.retry(queue, leases, worker, 0), lambda _: self.jobs_ready(queue))
