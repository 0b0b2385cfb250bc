"""``store/take`` and what follows it: ``ack``, ``retry``, ``fail``, ``extend``. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sbus.asyncio.look_ups import UNANSWERED, LookUps
from sbus.protocol.credentials import Peer
from sbus.protocol.framed_data import MAX_DELAY_SECONDS, MAX_JOBS, MIN_LEASE_SECONDS, framed_data
from sbus.rpc.caller_access import Allow, groups_of
from sbus.rpc.requests import Request
from sbus_programs.config.store import QueueSettings
from sbus_services.store.calls.fields import Fields
from sbus_services.store.calls.read_calls import MAX_WAIT_SECONDS
from sbus_services.store.calls.responses import RESPONSE_BYTES, CallError, frame_of, job_head, response, restarting
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import JobPage, LeasedJob, Worker
from sbus_services.store.operation_queue import QueuedOperation
from sbus_services.store.workers import Holder

MAX_REASON_BYTES = 1_024
"""Longest reason of a failure."""

STALE = "the lease is over, or another connection has it"

Change = Callable[[Engine, str, Sequence[int], Worker], Sequence[bool]]


class JobCalls:
    """Serves the calls of workers."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._look_ups = LookUps()

    async def take(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/take``: jobs with a lease, which only the connection of the caller can use."""
        context, caller = self._context, request.caller
        fields = Fields(head, ("queue", "max", "wait", "lease"))
        queue = context.routes.queue(fields.name("queue"))
        most = fields.number("max", 1, 1, MAX_JOBS)
        wait = (fields.milliseconds("wait", MAX_WAIT_SECONDS) or 0) / 1000
        lease_ms = fields.milliseconds("lease", MAX_DELAY_SECONDS, MIN_LEASE_SECONDS)
        await self.check_worker(caller, queue)
        holder = await context.workers.admit(caller.connection)
        with context.waits(caller.uid, wait):
            if context.is_stopping:
                raise restarting()
            jobs = await self.taken(queue.name, caller.uid, holder, most=most, lease_ms=lease_ms, wait=wait)
        return response("jobs", [(job_head(queue.stream, job), frame_of(job.stored)) for job in jobs], context.run)

    async def taken(self, queue: str, uid: int, holder: Holder, *, most: int, lease_ms: int | None, wait: float) -> Sequence[LeasedJob]:
        """Return jobs for *holder*, a worker of the user *uid*, or an empty sequence. Raises StoreError, CallError."""
        context = self._context
        worker = Worker(holder.connection, uid, holder.identity)
        holder.queues.add(queue)

        def take(engine: Engine) -> JobPage:
            if holder.is_gone:
                return JobPage([])
            return engine.take(queue, worker, most, RESPONSE_BYTES, lease_ms)

        def begin(done: Callable[[QueuedOperation[Engine]], None]) -> object:
            return context.operations.submit(uid, take, done)

        line = context.line(queue)
        jobs = await line.take(uid, begin, lambda each: context.give_back(queue, worker, each), wait)
        if jobs:
            context.counts["taken"] += len(jobs)
            context.schedule_sweep(context.clock.now() + min(job.lease_ms for job in jobs))
        return jobs

    async def check_worker(self, caller: Peer, queue: QueueSettings) -> None:
        """Check that *caller* may be a worker. Raises CallError (EACCES, EAGAIN)."""
        context = self._context
        if not queue.users and not queue.groups:
            await context.access.check_subscribe(caller, context.routes.stream(queue.stream).patterns)
            return
        if caller.origin or not await self._is_admitted(caller, Allow(queue.users, queue.groups)):
            raise CallError(
                "EACCES", f"user {caller.uid} may not be a worker of queue {queue.name!r}; see users and groups in store.toml(5)"
            )

    async def _is_admitted(self, caller: Peer, allow: Allow) -> bool:
        """Return whether *allow* permits *caller*. A look-up of groups can take long, and the calls of all users run on this loop.

        Raises CallError (EAGAIN) if it takes too long.
        """
        if not allow.needs_groups(caller):
            return allow.admits(caller)
        try:
            groups = await self._look_ups.run(self._context.charged.of(caller.uid), partial(groups_of, caller.uid))
        except UNANSWERED:
            raise CallError("EAGAIN", f"cannot look up the groups of user {caller.uid} now; try again") from None
        return allow.admits(caller, groups)

    async def ack(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/ack``: the jobs are done."""
        fields = Fields(head, ("queue", "leases"))
        return await self._change(request, fields, "acked", lambda engine, queue, leases, worker: engine.ack(queue, leases, worker))

    async def retry(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/retry``: the jobs are ready again after a time."""
        fields = Fields(head, ("queue", "leases", "after"))
        after = fields.milliseconds("after", MAX_DELAY_SECONDS)
        return await self._change(
            request, fields, "retried", lambda engine, queue, leases, worker: engine.retry(queue, leases, worker, after)
        )

    async def fail(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/fail``: the jobs are dead letters."""
        fields = Fields(head, ("queue", "leases", "reason"))
        reason = fields.text("reason", MAX_REASON_BYTES)
        return await self._change(
            request, fields, "failed", lambda engine, queue, leases, worker: engine.fail(queue, leases, worker, reason)
        )

    async def extend(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/extend``: the leases begin again now."""
        fields = Fields(head, ("queue", "leases", "lease"))
        lease_ms = fields.milliseconds("lease", MAX_DELAY_SECONDS, MIN_LEASE_SECONDS)
        return await self._change(
            request, fields, "extended", lambda engine, queue, leases, worker: engine.extend(queue, leases, worker, lease_ms)
        )

    async def _change(self, request: Request, fields: Fields, name: str, change: Change) -> bytes:
        """Perform *change* on the leases of the calling connection, and return the response."""
        queue = self._context.routes.queue(fields.name("queue"))
        leases = list(dict.fromkeys(fields.numbers("leases")))
        outcomes = await self.changed(queue.name, leases, Worker(request.caller.connection, request.caller.uid), name, change)
        errors = {str(lease): ("ESTALE", STALE) for lease, is_held in zip(leases, outcomes, strict=True) if not is_held}
        return framed_data({"errors": errors} if errors else {})

    async def changed(self, queue: str, leases: Sequence[int], worker: Worker, name: str, change: Change) -> Sequence[bool]:
        """Perform *change* on *leases*, and return which of them were valid. Raises StoreError, CallError."""
        context = self._context

        def committed(outcomes: Sequence[bool]) -> None:
            self.count(name, queue, outcomes)
            if name != "extended":
                context.on_settled(worker.connection, leases)

        return await context.operations.run(worker.uid, lambda engine: change(engine, queue, leases, worker), len(leases), committed)

    def count(self, name: str, queue: str, outcomes: Sequence[bool]) -> None:
        """Count changes of leases by the counter *name*, and let others have the jobs that are ready now."""
        done = sum(outcomes)
        self._context.counts[name] += done
        self._context.counts["stale"] += len(outcomes) - done
        self._context.jobs_ready(queue)
        self._context.schedule_sweep(0)
