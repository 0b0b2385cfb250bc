"""Serves requests for asyncio: many handlers concurrently. ``sbus.sync.server`` is the same for blocking programs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Coroutine

from sbus.asyncio.caller_groups import CallerGroups
from sbus.asyncio.link import AsyncLink
from sbus.errors import Closed, PayloadTooLarge, SbusError, ServiceError, TimedOut
from sbus.inbox import Bounds, Inbox
from sbus.operations import Deadline, begin_serving
from sbus.rpc.cancellation import WATCH_SECONDS
from sbus.rpc.live_requests import CallerWatch
from sbus.rpc.requests import Task
from sbus.rpc.service import LOG, MAX_CONCURRENT_HANDLERS, Dispatcher
from sbus.rpc.streaming import Parts, is_stream

_READ_AHEAD = Bounds(packets=256)
"""Requests that are read before they are looked at: few, because those in the bus's queue take turns, and these do not."""


class AsyncServer:
    """The services of *dispatcher* on one link; at most *max_concurrent* handlers run concurrently, None for no limit."""

    def __init__(self, link: AsyncLink, dispatcher: Dispatcher, max_concurrent: int | None = MAX_CONCURRENT_HANDLERS) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._max_concurrent = max_concurrent
        self._running: set[asyncio.Task[None]] = set()
        self._streaming: set[asyncio.Task[None]] = set()
        self._sending: set[asyncio.Task[None]] = set()
        """Responses that wait for room in the socket. They are sent even if the server stops."""
        self._unbegun: dict[tuple[int, str], Task] = {}
        """Requests whose task was made, and has not begun: one that is cancelled then does not run at all."""
        self._watching: asyncio.TimerHandle | None = None

    async def run(self, ready: Callable[[], None] | None) -> None:
        """Serve until the bus is closed, or this is cancelled. Raises RuntimeError if another call serves already."""
        self._dispatcher.begin_serving()
        try:
            await self._serve(ready)
        finally:
            self._dispatcher.end_serving()

    async def _serve(self, ready: Callable[[], None] | None) -> None:
        link = self._link
        inbox = await link.run(begin_serving(link.session, self._dispatcher, Deadline("starting the service", link.timeout), _READ_AHEAD))
        self._dispatcher.inbox = inbox
        if self._dispatcher.is_cancellable:
            self._dispatcher.watch = CallerWatch(link.session, inbox, self._dispatcher.live)
        groups = self._dispatcher.pending = CallerGroups(self._decide)
        is_ours = link.session.refusals.handler is None
        if is_ours:
            link.session.refusals.handler = self._dispatcher.note_refusal
        try:
            if ready is not None:
                ready()
            while True:
                item = await link.receive(inbox, None)
                await self._send(self._dispatcher.handle(item, time.time()))
                self._start_some()
        except Closed:
            while inbox.is_draining and (waits := self._running | self._sending | groups.running) and link.state == "connected":
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._dispatcher.inbox = None
            if self._watching is not None:
                self._watching.cancel()
            if is_ours:
                link.session.refusals.handler = None
            await self._stop(inbox)

    def _decide(self, task: Task, groups: frozenset[int] | None) -> None:
        """Queue or reject a request whose caller is a member of *groups*, None if that is not known."""
        if packet := self._dispatcher.decide(task, groups, time.time()):
            self._post(packet)
        if self._dispatcher.inbox is not None:
            self._start_some()

    def _start_some(self) -> None:
        """Start as many requests as may run concurrently."""
        while self._max_concurrent is None or len(self._running) < self._max_concurrent:
            task, packets = self._dispatcher.next(time.time())
            for packet in packets:
                self._post(packet)
            if task is None:
                return
            self._unbegun[task.place] = task
            self._start(self._run(task))
            if self._watching is None and self._dispatcher.watch is not None:
                self._watching = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._look)

    def _look(self) -> None:
        """Watch the callers of requests that take long, and look again while there are requests."""
        self._watching = None
        watch = self._dispatcher.watch
        if watch is not None and len(self._dispatcher.live):
            watch.look()
            self._link.push()
            self._watching = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._look)

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run *coroutine* concurrently with the others; when it is done, start others."""
        running = asyncio.ensure_future(coroutine)
        if running not in self._streaming:  # an eager task may stream already
            self._running.add(running)
        running.add_done_callback(self._ended)

    def _post(self, packet: bytes) -> None:
        """Send a response now, or as soon as there is room."""
        if not self._link.writer.send_now(packet):
            sending = asyncio.ensure_future(self._send(packet))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    def _ended(self, running: asyncio.Task[None]) -> None:
        """Start other requests, unless the server has stopped."""
        self._running.discard(running)
        self._streaming.discard(running)
        if not running.cancelled() and self._dispatcher.inbox is not None:
            self._start_some()

    async def _run(self, task: Task) -> None:
        """Run one request, and send its response, unless the caller cancels it."""
        self._unbegun.pop(task.place, None)
        running, cancelled = asyncio.current_task(), task.cancelled
        if cancelled.is_known or running is None:
            self._dispatcher.ended(task)
            return
        cancelled.on_set = running.cancel
        try:
            result = task.handler(task.request)
            if inspect.isawaitable(result):
                result = await result
            packet = await self._send_parts(task, result, running) if is_stream(result) else self._dispatcher.answered(task, result)
        except Exception as error:
            packet = self._dispatcher.failed(task, error)
        except BaseException as error:
            cancelled.on_set = None
            is_cancelled = self._dispatcher.ended(task)
            if is_cancelled and isinstance(error, asyncio.CancelledError):
                return
            await self._send_last(b"" if is_cancelled else task.error("the service stopped while it ran the request"))
            raise
        finally:
            cancelled.on_set = None
        await self._send(packet, task)

    async def _send_parts(self, task: Task, parts: Parts, running: asyncio.Task[None]) -> bytes:
        """Send the parts that a handler makes, as the caller accepts them, and return the packet of the end."""
        try:
            stream = self._dispatcher.streams.open(task, parts)
        except ServiceError:
            await _close(parts)
            raise
        wake = asyncio.Event()
        stream.on_wake = wake.set
        # It may wait for its caller, and must not take the place of another request meanwhile.
        self._running.discard(running)
        self._streaming.add(running)
        self._start_some()
        try:
            while True:
                while not stream.may_send():
                    stream.awaits_caller = True
                    wake.clear()
                    await wake.wait()
                try:
                    part = await anext(parts) if isinstance(parts, AsyncGenerator) else next(parts)
                except (StopIteration, StopAsyncIteration):
                    return self._dispatcher.streamed(task, stream.sent)
                await self._send_part(stream.part(part))
        finally:
            self._dispatcher.streams.close(stream)
            await _close(parts)

    async def _send_part(self, packet: bytes) -> None:
        """Send a part. Raises ServiceError if that is not possible: the stream would have a gap."""
        try:
            await self._link.writer.send(packet)
        except PayloadTooLarge as error:
            raise ServiceError(f"cannot send a part: {error.without_advice()}") from error
        except (TimedOut, Closed, ConnectionError) as error:
            raise ServiceError(f"cannot send a part: {error}") from error

    async def _send(self, packet: bytes, task: Task | None = None) -> None:
        """Send a response, if there is one, or an error if it is too long for the socket. Sends it also if this is cancelled."""
        if not packet:
            return
        try:
            await self._link.writer.send(packet)
        except asyncio.CancelledError:
            await self._send_last(packet)
            raise
        except PayloadTooLarge as error:
            if task is not None:
                await self._send(task.error(str(error.without_advice())))
        except (TimedOut, Closed, ConnectionError) as error:
            # run() raises the end of the connection; this is about one response.
            self._dispatcher.counts["unsent"] += 1
            LOG.error("cannot send a response: %s", error)

    async def _send_last(self, packet: bytes) -> None:
        """Send a response if that is still possible."""
        if packet:
            with contextlib.suppress(SbusError, OSError):
                await self._link.writer.send(packet)

    async def _stop(self, inbox: Inbox) -> None:
        """End the subscription, cancel running handlers, and send errors to the callers that wait, also those of unread requests."""
        dispatcher = self._dispatcher
        packets = [dispatcher.handle(item, time.time()) for item in inbox.take_many(len(inbox))]
        dispatcher.watch = None
        self._link.session.turns.end()
        self._link.session.unsubscribe_all(inbox)
        # Before anything is awaited: a look-up that ends then would queue its requests, and a task would begin.
        packets += dispatcher.stop(self._unbegun.values())
        self._unbegun.clear()
        running = (*self._running, *self._streaming)
        for each in running:
            each.cancel()
        try:
            for packet in packets:
                await self._send_last(packet)
            await asyncio.gather(*running, *self._sending, return_exceptions=True)
        finally:
            dispatcher.pending = None
            self._link.push()


async def _close(parts: Parts) -> None:
    """End the generator of a handler."""
    if isinstance(parts, AsyncGenerator):
        await parts.aclose()
    else:
        parts.close()
