"""``store/peek``, ``streams``, ``purge``, ``forget``, ``revive`` and ``acknowledge``. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from typing import Any, get_args

from sbus.protocol.framed_data import MAX_MESSAGES, framed_data
from sbus.rpc.requests import Request
from sbus_programs.config.store import StreamSettings
from sbus_services.store.calls.fields import MAX_SEQ, Fields
from sbus_services.store.calls.responses import RESPONSE_BYTES, CallError, fitting, frame_of, info_head, item_of, response
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import JobInfo, JobState, Purged, QueueStatistics, StoreStatistics, StreamStatistics
from sbus_services.store.operation_queue import SCAN_WEIGHT, SERVICE

STATES: tuple[JobState, ...] = get_args(JobState)

MAX_ROWS = 1_000
"""Messages that one operation removes. A call that removes more performs several, and others take turns with it."""

FRESH_SECONDS = 0.5
"""Figures are made at most once in this time."""


class AdminCalls:
    """Serves the calls for people and administrators."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._figures: StoreStatistics | None = None
        self._figures_at = 0.0

    async def figures(self) -> StoreStatistics:
        """Return the figures of the store, at most FRESH_SECONDS old."""
        now = asyncio.get_running_loop().time()
        if self._figures is None or now >= self._figures_at + FRESH_SECONDS:
            self._figures_at = now
            self._figures = await self._context.operations.run(SERVICE, lambda engine: engine.statistics())
        return self._figures

    def forget_figures(self) -> None:
        """Make the figures again when they are needed next: they have changed."""
        self._figures = None

    async def peek(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/peek``: messages of a stream or jobs of a queue, without an effect on them."""
        context, uid = self._context, request.caller.uid
        fields = Fields(head, ("queue", "stream", "state", "after", "max"))
        after, most = fields.number("after", 0, 0, MAX_SEQ), fields.number("max", MAX_MESSAGES, 1, MAX_MESSAGES)
        if ("queue" in fields) == ("stream" in fields):
            raise CallError("EINVAL", "queue or stream must be set, and not both")
        if "stream" in fields:
            if "state" in fields:
                raise CallError("EINVAL", "state is of the jobs of a queue; remove it, or name a queue")
            stream = await self._readable(request, fields.name("stream"))
            page = await context.operations.run(uid, lambda engine: engine.read(stream.name, after + 1, most, RESPONSE_BYTES), most)
            return response("messages", fitting(item_of(stream.name, each) for each in page.items), context.run)
        queue = context.routes.queue(fields.name("queue"))
        name = fields.choice("state", STATES) if "state" in fields else "ready"
        state = next(each for each in STATES if each == name)
        stream = await self._readable(request, queue.stream)
        jobs: list[JobInfo] = await context.operations.run(
            uid, lambda engine: engine.jobs(queue.name, state, after, most, RESPONSE_BYTES), most
        )
        return response("messages", fitting((info_head(stream.name, each), frame_of(each.stored)) for each in jobs), context.run)

    async def streams(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/streams``: settings and figures of what the caller may read, and for each user its own part."""
        context = self._context
        Fields(head, ())
        is_owner = await context.access.is_owner(request.caller)
        figures = await self.figures()
        visible = {
            each.name
            for each in context.routes.settings.streams
            if is_owner or await context.access.may_subscribe(request.caller, each.patterns)
        }
        streams = {each.name: each for each in figures.streams}
        queues = {each.name: each for each in figures.queues}
        listed = [
            self.described(streams.get(each.name), each, request.caller.uid, is_owner=is_owner)
            for each in context.routes.settings.streams
            if each.name in visible
        ]
        if is_owner:  # a stream that was removed from the configuration has no keys to ask for
            listed += [self.described(each, None, request.caller.uid, is_owner=True) for each in figures.streams if not each.is_configured]
        jobs = [
            self._queue(queues.get(each.name), each.name, each.stream) for each in context.routes.settings.queues if each.stream in visible
        ]
        if is_owner:
            jobs += [self._queue(each, each.name, each.stream) for each in figures.queues if not each.is_configured]
        return framed_data({"streams": listed, "queues": jobs, "run": context.run})

    def described(
        self, figures: StreamStatistics | None, settings: StreamSettings | None, uid: int, *, is_owner: bool
    ) -> dict[str, object]:
        """Return a stream with its settings. Only owners see what other users have."""
        found: dict[str, object] = {"name": settings.name if settings else "", "configured": settings is not None}
        if settings is not None:
            found |= {
                "keys": list(settings.keys),
                "last": settings.last,
                "max_keys": settings.max_keys,
                "retain": settings.retain,
                "max_bytes": settings.max_bytes,
                "max_messages": settings.max_messages,
                "max_bytes_per_user": settings.max_bytes_per_user,
                "publish": settings.publish,
                "on_subscribe": settings.on_subscribe,
            }
        if figures is not None:
            user = self._context.charged.of(uid)
            own = [asdict(each) for each in figures.users if is_owner or each.uid == user]
            found |= {
                "name": figures.name,
                "messages": figures.messages,
                "bytes": figures.bytes,
                "stored_keys": figures.keys,
                "first": figures.first_seq,
                "last_seq": figures.last_seq,
                "gaps": figures.gaps,
                "readers": figures.readers,
                "removed": figures.removed,
                "users": own[:MAX_MESSAGES],
            }
        return found

    def _queue(self, figures: QueueStatistics | None, name: str, stream: str) -> dict[str, object]:
        """Return a queue with its settings."""
        settings = next((each for each in self._context.routes.settings.queues if each.name == name), None)
        found: dict[str, object] = {"name": name, "stream": stream, "configured": settings is not None}
        if settings is not None:
            found |= {
                "lease": settings.lease,
                "tries": settings.tries,
                "backoff": list(settings.backoff),
                "in_order": settings.in_order,
                "dead_keys": settings.dead,
                "waiting": len(self._context.lines.get(name, ())),
            }
        if figures is not None:
            found |= {
                "ready": figures.ready,
                "leased": figures.leased,
                "delayed": figures.delayed,
                "dead": figures.dead,
                "dropped_dead": figures.dropped_dead,
            }
        return found

    async def purge(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/purge``: remove messages of a stream, or dead letters of a queue. For owners of the bus."""
        context, uid = self._context, request.caller.uid
        fields = Fields(head, ("stream", "queue", "before", "pattern", "seqs", "state"))
        await context.access.check_owner(request.caller, "purge streams and queues")
        if ("queue" in fields) == ("stream" in fields):
            raise CallError("EINVAL", "queue or stream must be set, and not both")
        # A field that is ignored would remove more than the caller has asked for.
        others, owner = (("before", "pattern"), "stream") if "queue" in fields else (("seqs", "state"), "queue")
        for name in others:
            if name in fields:
                raise CallError("EINVAL", f"{name} is for a {owner}; remove it, or name a {owner}")
        if "queue" in fields:
            queue = fields.name("queue")
            if "state" in fields and fields.choice("state", ("dead",)) and "seqs" not in fields:
                return framed_data({"count": await self._drop_all_dead(uid, queue)})
            seqs = fields.numbers("seqs")
            return framed_data({"count": await context.operations.run(uid, lambda engine: engine.drop_dead(queue, seqs), len(seqs))})
        stream, pattern = fields.name("stream"), fields.pattern("pattern")
        if "pattern" in fields and not pattern:
            raise fields.error("pattern", "left out to remove the messages of all keys, or a pattern that is not empty")
        before = fields.number("before", 0, 1, MAX_SEQ) if "before" in fields else None
        count, place, has_more = 0, 0, True
        while has_more:
            purged = await context.operations.run(uid, partial(_purge, stream, before, pattern, place), SCAN_WEIGHT)
            count, has_more, place = count + purged.count, purged.more, purged.next_seq
        self.forget_figures()
        context.schedule_sweep(0)
        return framed_data({"count": count})

    async def _drop_all_dead(self, uid: int, queue: str) -> int:
        """Drop all dead letters of *queue*, and return their number."""
        count = 0

        def drop(engine: Engine) -> int:
            return engine.drop_dead(queue, [each.stored.seq for each in engine.jobs(queue, "dead", 0, MAX_MESSAGES)])

        while dropped := await self._context.operations.run(uid, drop, MAX_MESSAGES):
            count += dropped
        return count

    async def forget(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/forget``: remove all values of keys; for users that do not own the bus, only their own values."""
        context, uid = self._context, request.caller.uid
        fields = Fields(head, ("stream", "keys"))
        keys = dict.fromkeys(fields.patterns("keys", MAX_MESSAGES))
        name = fields.name("stream")
        stream = context.routes.stream(name)
        await context.access.check_subscribe(request.caller, stream.patterns)
        is_owner = await context.access.is_owner(request.caller)

        count = 0
        for key in keys:
            place, has_more = 0, True
            while has_more:
                done = await context.operations.run(uid, partial(_forget, name, key, None if is_owner else uid, place), SCAN_WEIGHT)
                count, place, has_more = count + done.count, done.next_seq, done.more
        self._figures = None
        context.schedule_sweep(0)  # subscribers learn that the values are gone
        return framed_data({"count": count})

    async def revive(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/revive``: dead letters are jobs again. For owners of the bus."""
        context = self._context
        fields = Fields(head, ("queue", "seqs"))
        await context.access.check_owner(request.caller, "revive dead letters")
        queue = context.routes.queue(fields.name("queue"))
        seqs = fields.numbers("seqs")
        count = await context.operations.run(request.caller.uid, lambda engine: engine.revive(queue.name, seqs), len(seqs))
        context.jobs_ready(queue.name)
        return framed_data({"count": count})

    async def acknowledge(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/acknowledge``: gaps and damaged messages are not reported as faults any more. For owners of the bus."""
        uid = request.caller.uid
        Fields(head, ())
        await self._context.access.check_owner(request.caller, "acknowledge gaps and damaged messages")
        count = 0
        while found := await self._context.operations.run(uid, lambda engine: engine.acknowledge(uid, MAX_ROWS), SCAN_WEIGHT):
            count += found
        self.forget_figures()
        return framed_data({"count": count})

    async def _readable(self, request: Request, name: str) -> StreamSettings:
        """Return a stream that the caller may read. Raises CallError."""
        stream = self._context.routes.stream(name)
        await self._context.access.check_subscribe(request.caller, stream.patterns)
        return stream


def _forget(stream: str, key: bytes, uid: int | None, place: int, engine: Engine) -> Purged:
    """Remove a part of the values of a key, from *place* on, with *uid* only those of this user."""
    return engine.forget(stream, key, uid, place, MAX_ROWS)


def _purge(stream: str, before: int | None, pattern: bytes, place: int, engine: Engine) -> Purged:
    """Purge a part of a stream, from *place* on."""
    return engine.purge(stream, before, pattern, MAX_ROWS, place)
