"""``store/last``, ``store/read`` and ``store/position``: for those who may subscribe to it. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from sbus.protocol.framed_data import MAX_MESSAGES, framed_data
from sbus.protocol.keys import intersection, text_of
from sbus.protocol.printable import printable
from sbus.rpc.requests import Request
from sbus_programs.config.store import StreamSettings
from sbus_services.store.calls.fields import MAX_SEQ, Fields
from sbus_services.store.calls.responses import RESPONSE_BYTES, CallError, fitting, frame_of, head_of, item_of, response, restarting
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.continuity import BEGUN_AGAIN
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import Gap, LastValues, Page, Stored
from sbus_services.store.operation_queue import SCAN_WEIGHT

MAX_PATTERNS = 16
"""Patterns of one call of ``store/last``."""

MAX_WAIT_SECONDS = 30.0
"""Longest wait of a call."""

MAX_SCANS = 32
"""Pages without a matching message that one call looks at. Then it returns where to continue."""

STARTS = ("first", "last", "new")


class ReadCalls:
    """Serves the calls that read streams."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    async def last(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/last``: the last values of all keys that match, ordered by key."""
        context = self._context
        fields = Fields(head, ("patterns", "after", "max"))
        patterns = fields.patterns("patterns", MAX_PATTERNS)
        after = fields.pattern("after") if "after" in fields else None
        most = fields.number("max", MAX_MESSAGES, 1, MAX_MESSAGES)
        wanted = [(stream.name, pattern) for pattern in patterns for stream in await self._with_last_values(request, pattern)]
        if not wanted:
            raise CallError("ENOENT", "no stream with last values stores keys that match; see last in store.toml(5)")

        values: dict[tuple[str, int], tuple[str, Stored]] = {}
        ends: list[bytes] = []
        for stream, wanted_pattern in wanted:
            # An operation for each part, so that other users have their turns in between.
            part = await context.operations.run(request.caller.uid, partial(_last, stream, wanted_pattern, after, most), SCAN_WEIGHT)
            values.update({(stream, stored.seq): (stream, stored) for stored in part.items})
            if part.next_key is not None:
                ends.append(part.next_key)
        # The next call continues after one key, in all streams.
        found = sorted((each for each in values.values() if not ends or each[1].key <= min(ends)), key=lambda each: each[1].key)
        items = fitting((head_of(stream, stored), frame_of(stored)) for stream, stored in found[:most])
        following = min(ends, default=None) if len(items) == len(found) else found[len(items) - 1][1].key
        return response("messages", items, context.run, next=None if following is None else text_of(following))

    async def read(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/read``: messages and gaps of a stream in order, from a number, a time or the position of a reader."""
        context = self._context
        fields = Fields(head, ("stream", "from", "time", "reader", "pattern", "max", "wait", "run"))
        stream = context.routes.stream(fields.name("stream"))
        pattern = fields.pattern("pattern")
        most = fields.number("max", MAX_MESSAGES, 1, MAX_MESSAGES)
        wait = (fields.milliseconds("wait", MAX_WAIT_SECONDS) or 0) / 1000
        start = _start(fields)
        time_ms = fields.milliseconds("time", MAX_SEQ / 1e6)
        reader = fields.name("reader") if "reader" in fields else ""
        run = fields.number("run", 0, 0, MAX_SEQ)
        if start is not None and time_ms is not None:
            raise CallError("EINVAL", "from and time are both set; remove one of them")
        await self._check_stream(request, stream, pattern)
        uid = request.caller.uid

        def begin(engine: Engine) -> tuple[int, int]:
            number = start if isinstance(start, int) else _first_seq(engine, stream.name, uid, reader, start=start, time_ms=time_ms)
            return number, engine.valid_from(stream.name, number, run)

        with context.waits(uid, wait):
            wanted, seq = await context.operations.run(uid, begin)
            page = await self._page(uid, stream.name, pattern, seq=seq, most=most, wait=0 if seq < wanted else wait)
        if seq < wanted:
            again = Gap(max(seq - 1, 0), context.clock.date(), pattern, 0, BEGUN_AGAIN)
            page = replace(page, items=[again, *page.items])
        items = fitting(item_of(stream.name, each) for each in page.items)
        following = page.items[len(items)].seq if len(items) < len(page.items) else page.next_seq
        return response("messages", items, context.run, next=following, last=page.last_seq)

    async def _page(self, uid: int, stream: str, pattern: bytes, *, seq: int, most: int, wait: float) -> Page:
        """Return a page with items, or an empty one when the wait is over or much has been looked at. Raises StoreError, CallError."""
        context = self._context
        end = asyncio.get_running_loop().time() + wait
        scans = 0
        with context.news.watched(stream, pattern) as arrived:
            while True:
                arrived.clear()
                page = await context.operations.run(uid, partial(_read, stream, seq, most, pattern), SCAN_WEIGHT if pattern else most)
                if page.items:
                    return page
                scans += 1
                left = end - asyncio.get_running_loop().time()
                if page.next_seq <= page.last_seq:
                    seq = page.next_seq
                    if scans >= MAX_SCANS:
                        return page
                    continue
                if left <= 0:
                    return page
                if context.is_stopping:
                    raise restarting()
                seq = page.next_seq
                scans = 0
                try:
                    async with asyncio.timeout(left):
                        await arrived.wait()
                except TimeoutError:
                    return page
                if context.is_stopping:
                    raise restarting()

    async def position(self, request: Request, head: dict[str, Any], _frames: list[bytes]) -> bytes:
        """Serve ``store/position``: the position of a reader of the calling user."""
        context, uid = self._context, request.caller.uid
        fields = Fields(head, ("stream", "reader", "seq", "drop", "run"))
        stream, reader = context.routes.stream(fields.name("stream")), fields.name("reader")
        seq = fields.number("seq", 0, 1, MAX_SEQ) if "seq" in fields else None
        run = fields.number("run", 0, 0, MAX_SEQ)
        is_dropped = fields.flag("drop")
        if is_dropped and seq is not None:
            raise CallError("EINVAL", "seq and drop are both set; remove one of them")
        await self._check_stream(request, stream, b"")

        def change(engine: Engine) -> int:
            known = engine.reader(stream.name, uid, reader)
            if is_dropped:
                engine.drop_reader(stream.name, uid, reader)
                return known or 0
            if seq is None:
                if known is None:
                    raise CallError("ENOENT", f"user {uid} has no reader {reader!r} of stream {stream.name!r}")
                return known
            if run and engine.valid_from(stream.name, seq, run) < seq:
                raise CallError("ESTALE", f"the number {seq} is of another file of the store; read again")
            engine.set_reader(stream.name, uid, reader, seq)
            return seq

        return framed_data({"seq": await context.operations.run(uid, change), "run": context.run})

    async def _with_last_values(self, request: Request, pattern: bytes) -> list[StreamSettings]:
        """Return the streams whose last values the caller may read by *pattern*. Raises CallError."""
        await self._context.access.check_subscribe(request.caller, [pattern])
        return self._context.routes.with_last_values(pattern)

    async def _check_stream(self, request: Request, stream: StreamSettings, pattern: bytes) -> None:
        """Check that the caller may subscribe to what it reads, which must be keys of the stream: the response has numbers of it, too.

        Raises CallError.
        """
        if pattern and not any(intersection(pattern, each) is not None for each in stream.patterns):
            raise CallError("EACCES", f"stream {stream.name!r} stores no key that {printable(pattern, 128)} matches")
        await self._context.access.check_subscribe(request.caller, [pattern] if pattern else stream.patterns)


def _start(fields: Fields) -> int | str | None:
    """Return ``from``: a number, a word, or None. Raises CallError."""
    value = fields.raw("from")
    if value is None or value in STARTS:
        return value  # type: ignore[no-any-return]
    if type(value) is not int or not 0 <= value <= MAX_SEQ:
        raise fields.error("from", "a number of a message, or one of: " + ", ".join(STARTS))
    return value


def _read(stream: str, seq: int, most: int, pattern: bytes, engine: Engine) -> Page:
    """Return a page of a response."""
    return engine.read(stream, seq, most, RESPONSE_BYTES, pattern)


def _last(stream: str, pattern: bytes, after: bytes | None, most: int, engine: Engine) -> LastValues:
    """Return a part of the last values of one stream."""
    return engine.last(stream, pattern, after, most, RESPONSE_BYTES)


def _first_seq(engine: Engine, stream: str, uid: int, reader: str, *, start: str | int | None, time_ms: int | None) -> int:
    """Return the number at which to begin."""
    if time_ms is not None:
        return engine.seq_at(stream, time_ms)
    if start in {"new", "last"}:
        last = engine.last_seq(stream)
        return last + 1 if start == "new" else max(1, last)
    if start is None and reader and (known := engine.reader(stream, uid, reader)) is not None:
        return known
    return engine.first_seq(stream)
