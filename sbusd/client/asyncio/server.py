"""Serves requests for asyncio: many handlers at once. ``sync_server`` is the same for programs that wait."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine

from sbusd.client.asyncio.link import AioLink
from sbusd.client.deadline import Deadline
from sbusd.client.errors import Closed, PayloadTooLarge, RemoteRefusal, SbusError, TimedOut
from sbusd.client.inbox import Inbox
from sbusd.client.messages import Gap, Item, Message, Replaced
from sbusd.client.rpc.service import LOG, Reception, Task
from sbusd.client.rpc.serving import AT_ONCE, begin_serving


class AsyncServer:
    """The services of *reception* on one link; *at_once* handlers run at once, None for as many as the reception lets in."""

    def __init__(self, link: AioLink, reception: Reception, at_once: int | None = AT_ONCE) -> None:
        self._link = link
        self._reception = reception
        self._at_once = at_once
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, ready: Callable[[], None] | None) -> None:
        """Serve until the bus is closed, or this is cancelled."""
        link = self._link
        inbox = await link.run(begin_serving(link.session, self._reception, Deadline("starting the service", link.timeout)))
        try:
            if ready is not None:
                ready()
            while True:
                try:
                    item = await link.receive(inbox, None)
                except RemoteRefusal as refusal:
                    self._reception.note_refusal(refusal)
                    continue
                await self._send(self._judge(item))
                self._start_some()
        except Closed:
            return
        finally:
            await self._stop(inbox)

    def _judge(self, item: Item) -> bytes:
        """Take in one item; return what to send at once."""
        if isinstance(item, Message):
            return self._reception.receive(item, time.time())
        if isinstance(item, Replaced):
            self._reception.note_missing(item.count)
        else:
            self._reception.note_missing(item.lost if isinstance(item, Gap) else 0)
        return b""

    def _start_some(self) -> None:
        """Start as many requests as may run at once."""
        while self._at_once is None or len(self._running) < self._at_once:
            task, packets = self._reception.next(time.time())
            for packet in packets:
                self._start(self._send(packet))
            if task is None:
                return
            self._start(self._run(task))

    def _start(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run *coroutine* beside the others; when it is done, another may begin."""
        running = asyncio.ensure_future(coroutine)
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        """Let the next one begin, unless this one was cancelled, which is the end of all."""
        self._running.discard(running)
        if not running.cancelled():
            self._start_some()

    async def _run(self, task: Task) -> None:
        """Run one request, and send its answer."""
        try:
            result = task.handler(task.request)
            packet = self._reception.answered(task, await result if inspect.isawaitable(result) else result)
        except Exception as error:
            packet = self._reception.failed(task, error)
        except BaseException:
            await self._send_last(task.error("the service stopped while it ran the request"))
            raise
        await self._send(packet, task)

    async def _send(self, packet: bytes, task: Task | None = None) -> None:
        """Send an answer, if there is one; where it is too long for the socket, say so instead."""
        if not packet:
            return
        try:
            await self._link.writer.send(packet)
        except PayloadTooLarge as error:
            if task is not None:
                await self._send(task.error(str(error)))
        except (TimedOut, Closed, ConnectionError) as error:
            # The end of the connection is told to the one who serves; this is about one answer.
            self._reception.counts["unsent"] += 1
            LOG.error("cannot send a response: %s", error)

    async def _send_last(self, packet: bytes) -> None:
        """Send an answer if that can still be done."""
        if packet:
            with contextlib.suppress(SbusError, OSError):
                await self._link.writer.send(packet)

    async def _stop(self, inbox: Inbox) -> None:
        """End the subscription, and what runs, and tell those who wait."""
        self._link.session.unsubscribe_all(inbox)
        inbox.patterns.clear()
        running = tuple(self._running)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for packet in self._reception.stop():
            await self._send_last(packet)
        self._link.push()
