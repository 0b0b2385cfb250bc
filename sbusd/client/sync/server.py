"""Serves requests for a program that waits: one handler at a time. ``aio_server`` is the same for asyncio."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable

from sbusd.client.deadline import Deadline
from sbusd.client.errors import Closed, PayloadTooLarge, RemoteRefusal, SbusError, TimedOut
from sbusd.client.inbox import Inbox
from sbusd.client.messages import Gap, Item, Message, Replaced
from sbusd.client.rpc.service import LOG, Reception, Result, Task
from sbusd.client.rpc.serving import DRAINED_AT_ONCE, begin_serving
from sbusd.client.sync.link import SyncLink


class Server:
    """The services of *reception* on one link."""

    def __init__(self, link: SyncLink, reception: Reception) -> None:
        self._link = link
        self._reception = reception

    def run(self, ready: Callable[[], None] | None) -> None:
        """Serve until the bus is closed."""
        link = self._link
        inbox = link.run(begin_serving(link.session, self._reception, Deadline("starting the service", link.timeout)))
        try:
            if ready is not None:
                ready()
            while True:
                self._take_in(inbox)
                self._run_next()
        except Closed:
            return
        finally:
            self._stop(inbox)

    def _take_in(self, inbox: Inbox) -> None:
        """Take in what is there, and wait for something if nothing is to be run."""
        docket = self._reception.docket
        for _ in range(DRAINED_AT_ONCE):
            try:
                item = self._link.receive(inbox, 0 if len(docket) else None)
            except TimedOut:
                return
            except RemoteRefusal as refusal:
                self._reception.note_refusal(refusal)
                continue
            self._send(self._judge(item))

    def _judge(self, item: Item) -> bytes:
        """Take in one item; return what to send at once."""
        if isinstance(item, Message):
            return self._reception.receive(item, time.time())
        if isinstance(item, Replaced):
            self._reception.note_missing(item.count)
        else:
            self._reception.note_missing(item.lost if isinstance(item, Gap) else 0)
        return b""

    def _run_next(self) -> None:
        """Run the next request, if there is one."""
        task, packets = self._reception.next(time.time())
        for packet in packets:
            self._send(packet)
        if task is not None:
            self._run(task)

    def _run(self, task: Task) -> None:
        """Run one request, and send its answer."""
        try:
            packet = self._reception.answered(task, _plain(task.handler(task.request)))
        except Exception as error:
            packet = self._reception.failed(task, error)
        except BaseException:
            with contextlib.suppress(SbusError, OSError):
                self._send(task.error("the service stopped while it ran the request"))
            raise
        self._send(packet, task)

    def _send(self, packet: bytes, task: Task | None = None) -> None:
        """Send an answer, if there is one; where it is too long for the socket, say so instead."""
        if not packet:
            return
        try:
            self._link.send(packet)
        except PayloadTooLarge as error:
            if task is not None:
                self._send(task.error(str(error)))
        except TimedOut as error:
            self._reception.counts["unsent"] += 1
            LOG.error("cannot send a response: %s", error)

    def _stop(self, inbox: Inbox) -> None:
        """End the subscription, and tell those who wait."""
        self._link.session.unsubscribe_all(inbox)
        inbox.patterns.clear()
        with contextlib.suppress(SbusError, OSError):
            for packet in self._reception.stop():
                self._link.send(packet)
        self._link.push()


def _plain(result: Result | Awaitable[Result]) -> Result:
    """Return what a handler has returned. Raises TypeError if it is to be awaited."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("cannot run a coroutine function as a handler; serve it on an AsyncBus")
