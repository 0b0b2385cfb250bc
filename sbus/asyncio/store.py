"""The messages and jobs of sbus-store(8), for a program. Spec: sbus-store(8)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Self

from sbus.arguments import check_count, time_limit
from sbus.asyncio.calls import AsyncCallMethods
from sbus.asyncio.lease_renewal import AsyncLeaseRenewal
from sbus.asyncio.put_gathering import AsyncPutGathering
from sbus.asyncio.stored_streams import AsyncRemoteStore, AsyncStoredStreams
from sbus.encoding import Data
from sbus.errors import Closed, Disconnected, SbusError, TimedOut
from sbus.protocol.envelope import NUMBER_LIMITS
from sbus.protocol.framed_data import MAX_JOBS
from sbus.store.errors import StoreError
from sbus.store.items import (
    Lease,
    Put,
    QueuedJob,
    StoredMessage,
    StoreItem,
    heads_and_frames,
    item_of,
    lease_errors,
    lease_of,
    malformed,
    parse_response,
    puts_of,
    queued_job_of,
)
from sbus.store.requests import (
    WAIT_SECONDS,
    NewMessage,
    PutRequest,
    check_jobs,
    check_retry,
    key_text,
    peek_data,
    purge_data,
    put_requests,
    reason_text,
    request_data,
)


class AsyncJob:
    """A job of a queue with a lease: until its end no other worker gets the job, and then another one does.

    Use it in a ``with`` block, ``async with`` for ``AsyncBus``: the client renews the lease while the block runs. At its end the job is
    acknowledged. After an exception it is retried with the backoff of the queue, unless the block settled it by a call before.

    If the lease has ended before the block, the store gives the job to a worker again: because the connection was made again, or this
    process did not run in time to renew it. The end of the block then raises nothing, logs that and counts it in
    ``statistics.jobs_lost``, and ``is_lost`` is true; so a loop over jobs goes on.
    """

    def __init__(self, store: AsyncStore, queue: str, lease: Lease, lease_seconds: float | None) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self.queue = queue
        self.lease = lease
        self.is_settled = False
        self.is_lost = False
        self._has_failed = False

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "settled" if self.is_settled else "leased"
        return f"<{type(self).__name__} {self.key!r} of queue {self.queue!r}: {state}>"

    @property
    def message(self) -> StoredMessage:
        """The message that is the job."""
        return self.lease.message

    @property
    def key(self) -> str:
        """The key of the message."""
        return self.lease.message.key

    @property
    def payload(self) -> bytes:
        """The payload of the message."""
        return self.lease.message.payload

    @property
    def tries(self) -> int:
        """The number of tries, with this one: 1 for a new job."""
        return self.lease.tries

    async def ack(self) -> None:
        """Acknowledge the job: it is done and removed. On return that is on disk.

        After another error than ``ESTALE`` the lease of a block is still renewed, so the call can be repeated.

        Raises:
            StoreError: ``ESTALE``: the lease has ended, and another worker gets the job or has it.
        """
        await self._settle("ack")

    async def retry(self, after: float | None = None) -> None:
        """Give the job back: it is tried again in *after* seconds, by default after the backoff of the queue.

        After the last try it is a dead letter. Raises what ``ack`` raises.
        """
        check_retry(after)
        await self._settle("retry", after=after)

    async def fail(self, reason: str = "") -> None:
        """Make the job a dead letter for *reason*, which ``peek`` shows; it is not tried again. Raises what ``ack`` raises."""
        await self._settle("fail", reason=reason_text(reason))

    async def extend(self, lease: float | None = None) -> None:
        """Let the lease begin again now, for *lease* seconds, from 0.1, by default for its first length. Raises what ``ack`` raises."""
        seconds = self._lease_seconds if lease is None else lease
        await self._store._on_lease("extend", self, lease=seconds)

    async def __aenter__(self) -> Self:
        self._store._renewal.add(self._renew, self.lease.length)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self.is_settled:
                return
            if error is None:
                await self._finish()
                return
            with contextlib.suppress(SbusError):  # the lease then ends by itself, and the first error is the one to see
                await self.retry(None if isinstance(error, Exception) else 0)
        finally:
            self._store._renewal.remove(self._renew)

    async def _renew(self) -> bool:
        """Let the lease begin again; return False if it is lost, or the connection has ended: it cannot be renewed any more."""
        try:
            await self.extend()
        except (Closed, Disconnected):
            return False
        except SbusError:
            return not self.is_lost
        return True

    async def _finish(self) -> None:
        """Acknowledge the job, as nothing else has settled it. If its lease is lost, the next jobs can go on.

        A job whose retry or failure could not be reported is tried again when its lease ends.
        """
        if self._has_failed:
            return
        try:
            await self.ack()
        except StoreError:
            if not self.is_lost:
                raise
            self._store._note_lost(self)

    async def _settle(self, name: str, **options: object) -> None:
        """End the lease by the call *name*. If that fails, the lease is renewed as before, unless it has ended."""
        self._has_failed = name != "ack"
        try:
            await self._store._on_lease(name, self, **options)
        except StoreError:
            self._store._ended(self, is_settled=False)
            raise
        self._store._ended(self, is_settled=True)


class AsyncJobTaking:
    """A job that is taken when the ``with`` block begins, from :meth:`Store.take`."""

    def __init__(self, store: AsyncStore, queue: str, timeout: float | None, lease: float | None) -> None:
        self._store = store
        self._queue = queue
        self._timeout = timeout
        self._lease = lease
        self._job: AsyncJob | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of queue {self._queue!r}>"

    async def __aenter__(self) -> AsyncJob:
        jobs = await self._store.take_many(self._queue, 1, timeout=self._timeout, lease=self._lease)
        if not jobs:
            raise TimedOut(f"waiting for a job of queue {self._queue!r}", self._timeout or 0.0)
        self._job = jobs[0]
        return await self._job.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._job is not None:
            await self._job.__aexit__(kind, error, trace)


class AsyncStore(AsyncStoredStreams):
    """The messages and jobs that sbus-store(8) keeps on disk, from :attr:`Bus.store`.

    Every method may raise StoreNotRunning, StoreError, and what ``Bus.call`` raises except NoRecipient and RemoteError. A store that has
    answered before and restarts is waited for, up to 30 s. So is a bus that restarts, with ``reconnect``; loops over jobs or over new
    messages wait for it without a limit. After PeerDisconnected or Disconnected it is not known whether a message without *id* is
    stored; calls that can be repeated are repeated.
    """

    def __init__(self, bus: AsyncCallMethods) -> None:
        super().__init__(bus)
        self._puts = AsyncPutGathering(self._put)
        self._renewal = AsyncLeaseRenewal()

    # Messages

    async def put(
        self,
        key: str | bytes,
        payload: Data = b"",
        *,
        id: str | None = None,
        delay: float | None = None,
        at: float | None = None,
        expire: float | None = None,
    ) -> Put:
        """Store a message in the stream that has *key*. When it returns, the message is on disk; then the store publishes it.

        A message with the *id* of one that this user put into the stream in the last hour is not stored again: ``is_duplicate`` is then
        true. A job is ready after *delay* seconds or *at* seconds since 1970. A message is removed *expire* seconds after it was put.
        What tasks of an ``AsyncBus`` put at the same time is sent in one call, in its order.

        Raises:
            StoreError: ``ENOENT``: no stream has the key. ``EACCES``: this user may not publish to it. ``EDQUOT``: a limit is reached.
            PayloadTooLarge, ProtocolError, ValueError: the message is too long, or an argument is invalid.
        """
        outcome = await self._puts.put(NewMessage(key, payload, id, delay, at, expire))
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    async def put_many(self, messages: Iterable[NewMessage]) -> list[Put | StoreError]:
        """Store *messages* in their order, as many in each call as fit, and return for each its ``Put``, or the error of that message.

        If a call as a whole fails, its error is raised, and the messages of earlier calls are stored. Raises what ``put`` raises.
        """
        outcomes: list[Put | StoreError] = []
        for request in put_requests(messages):
            outcomes += await self._put(request)
        return outcomes

    def on(self, twin: int) -> AsyncRemoteStore:
        """Return the streams of the host *twin*, whose relay and store carry out the calls. Nothing is sent yet.

        Raises ValueError if *twin* cannot be the number of a host.
        """
        check_count(twin, "twin", 1, NUMBER_LIMITS["src"])
        return AsyncRemoteStore(self._bus, twin)

    # Jobs

    def take(self, queue: str, *, timeout: float | None = None, lease: float | None = None) -> AsyncJobTaking:
        """Return a context manager that takes one job: ``with bus.store.take("mail") as job``.

        It waits up to *timeout* seconds for a job, None means no limit, and then raises TimedOut. The lease is *lease* seconds, by
        default that of the queue, and is renewed while the block runs. At the end of the block the job is acknowledged. If an exception
        leaves the block, the job is retried with the backoff of the queue, and the exception continues. If this connection ends,
        the job is retried with the backoff too.
        """
        return AsyncJobTaking(self, queue, timeout, lease)

    async def take_many(self, queue: str, count: int = 1, *, timeout: float | None = None, lease: float | None = None) -> list[AsyncJob]:
        """Take up to *count* jobs, 1 to 64, as soon as there is one; an empty list after *timeout* seconds. Their leases are not renewed.

        Use each in a ``with`` block, or call its ``ack``.
        """
        check_count(count, "count", 1, MAX_JOBS)
        limit = time_limit(timeout)
        end = None if limit is None else time.monotonic() + limit
        while True:
            wait = WAIT_SECONDS if end is None else min(WAIT_SECONDS, max(0.0, end - time.monotonic()))
            data = request_data(queue=queue, max=count, wait=round(wait, 3), lease=lease)
            _, found = heads_and_frames(await self._call("take", data, wait=wait, is_endless=end is None), "jobs")
            jobs = [AsyncJob(self, queue, lease_of(head, frame), lease) for head, frame in found]
            if jobs or (end is not None and time.monotonic() >= end):
                return jobs

    async def jobs(self, queue: str, *, timeout: float | None = None, lease: float | None = None) -> AsyncGenerator[AsyncJob]:
        """Yield one job after the other; end if there is none for *timeout* seconds, None means no limit.

        The lease of the yielded job is renewed until the loop asks for the next one, which acknowledges it, unless the body settled it.
        After ``break`` or an exception the job is not acknowledged, and is tried again when its lease ends; in a block ``with job``
        it is settled at once. With ``AsyncBus`` use ``contextlib.aclosing``.
        """
        while jobs := await self.take_many(queue, timeout=timeout, lease=lease):
            job = jobs[0]
            self._renewal.add(job._renew, job.lease.length)
            try:
                yield job
                if not job.is_settled:
                    await job._finish()
            finally:
                self._renewal.remove(job._renew)

    async def ack_many(self, jobs: Sequence[AsyncJob]) -> list[StoreError | None]:
        """Acknowledge *jobs* of one queue in one call, and return for each None or its error."""
        check_jobs(jobs, AsyncJob)
        if not jobs:
            return []
        data = request_data(queue=jobs[0].queue, leases=[job.lease.number for job in jobs])
        errors = lease_errors(await self._call("ack", data))
        for job in jobs:
            job.is_lost = errors.get(job.lease.number, ("",))[0] == "ESTALE"
            self._ended(job, is_settled=job.lease.number not in errors)
        return [
            StoreError("store/ack", *errors[job.lease.number], bus=self._address) if job.lease.number in errors else None for job in jobs
        ]

    # Administration

    async def peek(
        self, *, queue: str | None = None, stream: str | None = None, state: str | None = None, after: int = 0, count: int = 256
    ) -> list[StoreItem | QueuedJob]:
        """Return up to *count* messages, 1 to 256, of a *stream*, or jobs of a *queue* in *state*, with numbers above *after*.

        They are not taken. *state* is ``ready``, the default, ``leased``, ``delayed`` or ``dead``.
        """
        data = peek_data(queue, stream, state, after, count)
        _, found = heads_and_frames(await self._call("peek", data), "messages")
        return [queued_job_of(head, frame) if stream is None else item_of(head, frame) for head, frame in found]

    async def purge(
        self,
        *,
        stream: str | None = None,
        queue: str | None = None,
        before: int | None = None,
        pattern: str | bytes | None = None,
        seqs: Sequence[int] | None = None,
    ) -> int:
        """Remove messages of a *stream*, or dead letters of a *queue*, and return their number. For owners of the bus.

        Of a stream, those with lower numbers than *before* that match *pattern*: all by default. Of a queue, those with the numbers
        *seqs*, at most 256: None, the default, means all dead letters, and an empty list means none.

        Raises TypeError, ValueError: *pattern* is empty, *before* or a number is below 1, or an argument is for the other kind.
        """
        data = purge_data(stream, queue, before, pattern, seqs)
        return 0 if data is None else await self._count("purge", data)

    async def forget(self, stream: str, *keys: str | bytes) -> int:
        """Remove all values of *keys*, and return their number. The values must be this user's, unless it owns the bus."""
        return await self._count("forget", request_data(stream=stream, keys=[key_text(key) for key in keys])) if keys else 0

    async def revive(self, queue: str, *seqs: int) -> int:
        """Make the dead letters with the numbers *seqs* jobs again, and return how many there were. For owners of the bus."""
        return await self._count("revive", request_data(queue=queue, seqs=list(seqs))) if seqs else 0

    async def acknowledge(self) -> int:
        """Acknowledge all gaps and damaged messages of the store, and return how many there were. For owners of the bus.

        ``sbusctl doctor`` warns of later ones only. To acknowledge a job, see :meth:`Job.ack`.
        """
        return await self._count("acknowledge", request_data())

    # Private

    def _ended(self, job: AsyncJob, *, is_settled: bool) -> None:
        """Do not renew the lease of *job* any more, if it was settled or is lost."""
        if is_settled:  # a renewal that came after it has found no lease
            job.is_settled, job.is_lost = True, False
        if job.is_settled or job.is_lost:
            self._renewal.remove(job._renew)

    def _note_lost(self, job: AsyncJob) -> None:
        """Count and log a job that was done, and whose lease ended before the store knew that."""
        job.is_lost = job.is_settled = True
        self._bus._session.counters.jobs_lost += 1
        self._bus._session.notice_log.job_lost(job.queue, job.lease.message.seq)

    async def _put(self, request: PutRequest) -> list[Put | StoreError]:
        """Perform one call of ``store/put``."""
        answer = await self._call("put", request.data, is_repeatable=request.is_repeatable)
        puts, errors = puts_of(answer, request.count)
        return [StoreError("store/put", *errors[index], bus=self._address) if index in errors else put for index, put in enumerate(puts)]

    async def _count(self, name: str, data: bytes) -> int:
        """Perform a call that returns a count."""
        head, _ = parse_response(await self._call(name, data))
        if not isinstance(count := head.get("count"), int):
            raise malformed("count is missing")
        return count

    async def _on_lease(self, name: str, job: AsyncJob, **options: object) -> None:
        """Perform a call about the lease of one job. Raises its error."""
        data = request_data(queue=job.queue, leases=[job.lease.number], **options)
        errors = lease_errors(await self._call(name, data))
        if job.lease.number in errors:
            job.is_lost = errors[job.lease.number][0] == "ESTALE" and not job.is_settled
            raise StoreError(f"store/{name}", *errors[job.lease.number], bus=self._address)
