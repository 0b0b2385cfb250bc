"""The store for asyncio: :class:`AsyncStore`. The methods are documented in ``sbusd.client.sync.store``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sbusd.client.arguments import check_count, time_limit
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.lease_renewal import AsyncLeaseRenewal
from sbusd.client.asyncio.put_gathering import AsyncPutGathering
from sbusd.client.asyncio.stored_streams import AsyncRemoteStore, AsyncStoredStreams
from sbusd.client.encoding import Data
from sbusd.client.errors import SbusError, TimedOut
from sbusd.client.store.errors import StoreError
from sbusd.client.store.items import (
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
from sbusd.client.store.requests import (
    WAIT_SECONDS,
    NewMessage,
    PutRequest,
    check_retry,
    key_text,
    peek_data,
    purge_data,
    put_requests,
    reason_text,
    request_data,
)
from sbusd.client.sync.store import Job, JobTaking, Store, check_jobs
from sbusd.protocol.envelope import NUMBER_LIMITS
from sbusd.protocol.store_ranges import MAX_JOBS

if TYPE_CHECKING:
    from sbusd.client.asyncio.bus import AsyncBus


@documented_by(Job)
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
        return self.lease.message

    @property
    def key(self) -> str:
        return self.lease.message.key

    @property
    def payload(self) -> bytes:
        return self.lease.message.payload

    @property
    def tries(self) -> int:
        return self.lease.tries

    async def ack(self) -> None:
        await self._settle("ack")

    async def retry(self, after: float | None = None) -> None:
        check_retry(after)
        await self._settle("retry", after=after)

    async def fail(self, reason: str = "") -> None:
        await self._settle("fail", reason=reason_text(reason))

    async def extend(self, lease: float | None = None) -> None:
        seconds = self._lease_seconds if lease is None else lease
        await self._store._on_lease("extend", self, lease=seconds)

    async def __aenter__(self) -> Self:
        self._store._renewal.add(self, self.lease.length)
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
            self._store._renewal.remove(self)

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


@documented_by(JobTaking)
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


@documented_by(Store)
class AsyncStore(AsyncStoredStreams):
    """The messages and jobs that sbus-store(8) keeps on disk, from :attr:`Bus.store`.

    Every method may raise StoreNotRunning, StoreError, and what ``Bus.call`` raises except NoRecipient and RemoteError. A store that has
    answered before and restarts is waited for, up to 30 s. So is a bus that restarts, with ``reconnect``; loops over jobs or over new
    messages wait for it without a limit. After PeerDisconnected or Disconnected it is not known whether a message without *id* is
    stored; calls that can be repeated are repeated.
    """

    def __init__(self, bus: AsyncBus) -> None:
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
        outcome = await self._puts.put(NewMessage(key, payload, id, delay, at, expire))
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    async def put_many(self, messages: Iterable[NewMessage]) -> list[Put | StoreError]:
        outcomes: list[Put | StoreError] = []
        for request in put_requests(messages):
            outcomes += await self._put(request)
        return outcomes

    def on(self, twin: int) -> AsyncRemoteStore:
        check_count(twin, "twin", 1, NUMBER_LIMITS["src"])
        return AsyncRemoteStore(self._bus, twin)

    # Jobs

    def take(self, queue: str, *, timeout: float | None = None, lease: float | None = None) -> AsyncJobTaking:
        return AsyncJobTaking(self, queue, timeout, lease)

    async def take_many(self, queue: str, count: int = 1, *, timeout: float | None = None, lease: float | None = None) -> list[AsyncJob]:
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
        while jobs := await self.take_many(queue, timeout=timeout, lease=lease):
            job = jobs[0]
            self._renewal.add(job, job.lease.length)
            try:
                yield job
                if not job.is_settled:
                    await job._finish()
            finally:
                self._renewal.remove(job)

    async def ack_many(self, jobs: Sequence[AsyncJob]) -> list[StoreError | None]:
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
        data = purge_data(stream, queue, before, pattern, seqs)
        return 0 if data is None else await self._count("purge", data)

    async def forget(self, stream: str, *keys: str | bytes) -> int:
        return await self._count("forget", request_data(stream=stream, keys=[key_text(key) for key in keys])) if keys else 0

    async def revive(self, queue: str, *seqs: int) -> int:
        return await self._count("revive", request_data(queue=queue, seqs=list(seqs))) if seqs else 0

    async def acknowledge(self) -> int:
        return await self._count("acknowledge", request_data())

    # Private

    def _ended(self, job: AsyncJob, *, is_settled: bool) -> None:
        """Do not renew the lease of *job* any more, if it was settled or is lost."""
        if is_settled:  # a renewal that came after it has found no lease
            job.is_settled, job.is_lost = True, False
        if job.is_settled or job.is_lost:
            self._renewal.remove(job)

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
