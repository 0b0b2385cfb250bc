"""Serves requests in a blocking program: one handler at a time. ``sbusd.client.asyncio.server`` is the same for asyncio."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable

from sbusd.client.errors import Closed, PayloadTooLarge, SbusError, TimedOut
from sbusd.client.inbox import Inbox
from sbusd.client.operations import Deadline, begin_serving
from sbusd.client.rpc.service import LOG, QUEUED_REQUESTS, Dispatcher, Result, Task
from sbusd.client.sync.link import SyncLink


class Server:
    """The services of *dispatcher* on one link."""

    def __init__(self, link: SyncLink, dispatcher: Dispatcher) -> None:
        self._link = link
        self._dispatcher = dispatcher

    def run(self, ready: Callable[[], None] | None) -> None:
        """Serve until the bus is closed."""
        link = self._link
        inbox = link.run(begin_serving(link.session, self._dispatcher, Deadline("starting the service", link.timeout)))
        self._dispatcher.inbox = inbox
        is_ours = link.session.refusals.handler is None
        if is_ours:
            link.session.refusals.handler = self._dispatcher.note_refusal
        try:
            if ready is not None:
                ready()
            while not self._has_ended(inbox):
                self._run_next()
            while inbox.is_draining and len(self._dispatcher.queue):
                self._run_next()
        except Closed:
            return
        finally:
            self._dispatcher.inbox = None
            if is_ours:
                link.session.refusals.handler = None
            self._stop(inbox)

    def _has_ended(self, inbox: Inbox) -> bool:
        """Queue the requests that are here, and return whether no more come."""
        try:
            self._take_in(inbox)
        except Closed:
            return True
        return False

    def _take_in(self, inbox: Inbox) -> None:
        """Queue the requests that are here; wait for one if none is queued."""
        queue = self._dispatcher.queue
        for _ in range(QUEUED_REQUESTS):
            try:
                item = self._link.receive(inbox, 0 if len(queue) else None)
            except TimedOut:
                return
            self._send(self._dispatcher.handle(item, time.time()))

    def _run_next(self) -> None:
        """Run the next request, if there is one."""
        task, packets = self._dispatcher.next(time.time())
        for packet in packets:
            self._send(packet)
        if task is not None:
            self._run(task)

    def _run(self, task: Task) -> None:
        """Run one request, and send its response."""
        try:
            packet = self._dispatcher.answered(task, _plain(task.handler(task.request)))
        except Exception as error:
            packet = self._dispatcher.failed(task, error)
        except BaseException:
            with contextlib.suppress(SbusError, OSError):
                self._send(task.error("the service stopped while it ran the request"))
            raise
        self._send(packet, task)

    def _send(self, packet: bytes, task: Task | None = None) -> None:
        """Send a response, if there is one, or an error if it is too long for the socket."""
        if not packet:
            return
        try:
            self._link.send(packet)
        except PayloadTooLarge as error:
            if task is not None:
                self._send(task.error(str(error)))
        except TimedOut as error:
            self._dispatcher.counts["unsent"] += 1
            LOG.error("cannot send a response: %s", error)

    def _stop(self, inbox: Inbox) -> None:
        """End the subscription, and send errors to the callers that wait."""
        for item in inbox.take_many(len(inbox)) if inbox.is_drained else ():
            self._dispatcher.handle(item, time.time())
        with self._link.entered():
            self._link.session.unsubscribe_all(inbox)
            inbox.patterns.clear()
        with contextlib.suppress(SbusError, OSError):
            for packet in self._dispatcher.stop():
                self._link.send(packet)
        self._link.push()


def _plain(result: Result | Awaitable[Result]) -> Result:
    """Return the result of a handler. Raises TypeError if it is awaitable."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError("cannot run a coroutine function as a handler; serve it on an AsyncBus")
