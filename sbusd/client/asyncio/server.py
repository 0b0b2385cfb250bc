"""Serves requests for asyncio: many handlers concurrently. ``sbusd.client.sync.server`` is the same for blocking programs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine

from sbusd.client.asyncio.link import AsyncLink
from sbusd.client.errors import Closed, PayloadTooLarge, SbusError, TimedOut
from sbusd.client.inbox import Inbox
from sbusd.client.operations import Deadline, begin_serving
from sbusd.client.rpc.service import LOG, MAX_CONCURRENT_HANDLERS, Dispatcher, Task


class AsyncServer:
    """The services of *dispatcher* on one link; at most *max_concurrent* handlers run concurrently, None for no limit."""

    def __init__(self, link: AsyncLink, dispatcher: Dispatcher, max_concurrent: int | None = MAX_CONCURRENT_HANDLERS) -> None:
        self._link = link
        self._dispatcher = dispatcher
        self._max_concurrent = max_concurrent
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, ready: Callable[[], None] | None) -> None:
        """Serve until the bus is closed, or this is cancelled."""
        link = self._link
        inbox = await link.run(begin_serving(link.session, self._dispatcher, Deadline("starting the service", link.timeout)))
        self._dispatcher.inbox = inbox
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
            while inbox.is_draining and self._running and link.state == "connected":
                await asyncio.wait(self._running)
        finally:
            self._dispatcher.inbox = None
            if is_ours:
                link.session.refusals.handler = None
            await self._stop(inbox)

    def _start_some(self) -> None:
        """Start as many requests as may run concurrently."""
        while self._max_concurrent is None or len(self._running) < self._max_concurrent:
            task, packets = self._dispatcher.next(time.time())
            for packet in packets:
                self._start(self._send(packet))
            if task is None:
                return
            self._start(self._run(task))

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run *coroutine* concurrently with the others; when it is done, start others."""
        running = asyncio.ensure_future(coroutine)
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        """Start other requests, unless this one was cancelled, because then all are."""
        self._running.discard(running)
        if not running.cancelled():
            self._start_some()

    async def _run(self, task: Task) -> None:
        """Run one request, and send its response."""
        try:
            result = task.handler(task.request)
            packet = self._dispatcher.answered(task, await result if inspect.isawaitable(result) else result)
        except Exception as error:
            packet = self._dispatcher.failed(task, error)
        except BaseException:
            await self._send_last(task.error("the service stopped while it ran the request"))
            raise
        await self._send(packet, task)

    async def _send(self, packet: bytes, task: Task | None = None) -> None:
        """Send a response, if there is one, or an error if it is too long for the socket."""
        if not packet:
            return
        try:
            await self._link.writer.send(packet)
        except PayloadTooLarge as error:
            if task is not None:
                await self._send(task.error(str(error)))
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
        """End the subscription, cancel running handlers, and send errors to the callers that wait."""
        for item in inbox.take_many(len(inbox)) if inbox.is_drained else ():
            self._dispatcher.handle(item, time.time())
        self._link.session.unsubscribe_all(inbox)
        inbox.patterns.clear()
        running = tuple(self._running)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for packet in self._dispatcher.stop():
            await self._send_last(packet)
        self._link.push()
