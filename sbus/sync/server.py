"""Serves requests in a blocking program: one handler at a time. ``sbus.asyncio.server`` is the same for asyncio."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from threading import get_ident

from sbus.bus_calls import Call
from sbus.errors import Closed, PayloadTooLarge, SbusError, ServiceError, TimedOut
from sbus.inbox import Inbox
from sbus.operations import Begin, Deadline, Operation, begin_serving
from sbus.rpc.handlers import InvalidResultError
from sbus.rpc.live_requests import CallerWatch
from sbus.rpc.requests import Result, Task
from sbus.rpc.service import LOG, QUEUED_REQUESTS, Dispatcher
from sbus.rpc.streaming import Parts, ServiceStream, is_stream
from sbus.sync.link import SyncLink


class Server:
    """The services of *dispatcher* on one link."""

    def __init__(self, link: SyncLink, dispatcher: Dispatcher) -> None:
        self._link = link
        self._dispatcher = dispatcher

    def run(self, ready: Callable[[], None] | None) -> None:
        """Serve until the bus is closed. Raises RuntimeError if another call serves already."""
        self._link.locked(self._dispatcher.begin_serving)
        try:
            self._serve(ready)
        finally:
            self._dispatcher.end_serving()

    def _serve(self, ready: Callable[[], None] | None) -> None:
        link = self._link
        inbox = link.run(begin_serving(link.session, self._dispatcher, Deadline("starting the service", link.timeout)))
        self._dispatcher.inbox = inbox
        self._dispatcher.watch = CallerWatch(link.session, inbox, self._dispatcher.live)
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

    def _take_in(self, inbox: Inbox, *, is_waiting: bool = True) -> None:
        """Queue the requests that are here; if *is_waiting*, wait for one if none is queued."""
        queue, streams = self._dispatcher.queue, self._dispatcher.streams
        for _ in range(QUEUED_REQUESTS):
            try:
                item = self._link.receive(inbox, 0 if len(queue) or streams.is_ready or not is_waiting else None)
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
        if (stream := self._dispatcher.streams.next()) is not None:
            self._advance(stream)

    def _run(self, task: Task) -> None:
        """Run one request, and send its response, unless the caller cancels it."""
        thread = get_ident()
        task.cancelled.look = lambda seconds: get_ident() == thread and self._look(task, seconds)
        try:
            result = _plain(task.handler(task.request))
            if is_stream(result):
                self._begin_stream(task, result)
                return
            packet = self._dispatcher.answered(task, result)
        except Exception as error:
            packet = self._dispatcher.failed(task, error)
        except BaseException:
            with contextlib.suppress(SbusError, OSError):
                self._send(b"" if self._dispatcher.ended(task) else task.error("the service stopped while it ran the request"))
            raise
        finally:
            task.cancelled.look = None
        self._send(packet, task)

    def _begin_stream(self, task: Task, parts: Parts) -> None:
        """Queue the stream of a handler. Raises ServiceError if the caller may not have it, TypeError if it is asynchronous."""
        if isinstance(parts, AsyncGenerator):
            raise InvalidResultError("cannot run an asynchronous generator as a handler; serve it on an AsyncBus")
        # A caller that has cancelled streams may open others, although those have not had their turn to end.
        for each in self._dispatcher.streams.all():
            if each.task.cancelled.is_known:
                self._advance(each)
        try:
            stream = self._dispatcher.streams.open(task, parts)
        except ServiceError:
            parts.close()
            raise
        stream.on_wake = partial(self._dispatcher.streams.put, stream)
        task.cancelled.on_set = stream.wake
        self._dispatcher.streams.put(stream)

    def _advance(self, stream: ServiceStream) -> None:
        """Send one part of *stream*, or its end."""
        thread, task = get_ident(), stream.task
        task.cancelled.look = lambda seconds: get_ident() == thread and self._look(task, seconds)
        try:
            if not task.cancelled.is_known and stream.may_send() and self._send_part(stream):
                self._dispatcher.streams.put(stream)
                self._watch_waiting(stream)
                return
            packet = self._dispatcher.streamed(task, stream.sent)
        except Exception as error:
            packet = self._dispatcher.failed(task, error)
        except BaseException:
            with contextlib.suppress(SbusError, OSError):
                self._end_stream(stream)
            raise
        finally:
            task.cancelled.look = None
        self._close_stream(stream)
        self._send(packet, task)

    def _send_part(self, stream: ServiceStream) -> bool:
        """Send the next part; return False if there is none. Raises ServiceError if it cannot be sent."""
        if isinstance(stream.parts, AsyncGenerator):
            return False
        try:
            part = next(stream.parts)
        except StopIteration:
            return False
        try:
            self._link.send(stream.part(part))
        except PayloadTooLarge as error:
            raise ServiceError(f"cannot send a part: {error.without_advice()}") from error
        except TimedOut as error:
            # Without it, the stream would have a gap.
            raise ServiceError(f"cannot send a part: {error}") from error
        return True

    def _watch_waiting(self, stream: ServiceStream) -> None:
        """Watch the caller of a stream that waits for it: no handler runs meanwhile that would notice the end of the caller."""
        watch = self._dispatcher.watch
        if stream.awaits_caller and watch is not None:
            with contextlib.suppress(TimedOut):
                self._link.run(self._watch(partial(watch.watch, stream.task)))

    def _close_stream(self, stream: ServiceStream) -> None:
        """End the generator of *stream*, and forget it."""
        stream.task.cancelled.on_set = stream.on_wake = None
        self._dispatcher.streams.close(stream)
        try:
            if not isinstance(stream.parts, AsyncGenerator):
                stream.parts.close()
        except Exception:
            LOG.exception("the handler of %s failed when its stream was closed", stream.task.command)

    def _end_stream(self, stream: ServiceStream) -> None:
        """End *stream* because the service stops."""
        packet = b"" if self._dispatcher.ended(stream.task) else stream.task.error("the service stopped while it ran the request")
        self._close_stream(stream)
        self._send(packet)

    def _look(self, task: Task, seconds: float) -> bool:
        """Wait at most *seconds* until requests and cancellations arrive, and take them in; return False if no more come."""
        inbox, watch = self._dispatcher.inbox, self._dispatcher.watch
        if inbox is None or watch is None:
            return False
        try:
            self._link.run(self._watch(watch.look))
            if task.cancelled.is_known:
                return True
            self._send(self._dispatcher.handle(self._link.receive(inbox, seconds), time.time()))
            self._take_in(inbox, is_waiting=False)
        except TimedOut:
            self._link.push()
        except Closed:
            return False
        except (SbusError, OSError):
            # The connection has ended, and so has that of each caller to this service.
            task.cancelled.set()
        return True

    def _watch(self, start: Callable[[], Sequence[Call]]) -> Operation[None]:
        """Watch the callers that *start* returns questions about; a caller that has disconnected already is known afterwards."""
        yield Begin(start, Deadline("asking for callers", self._link.timeout))

    def _send(self, packet: bytes, task: Task | None = None) -> None:
        """Send a response, if there is one, or an error if it is too long for the socket."""
        if not packet:
            return
        try:
            self._link.send(packet)
        except PayloadTooLarge as error:
            if task is not None:
                self._send(task.error(str(error.without_advice())))
        except TimedOut as error:
            self._dispatcher.counts["unsent"] += 1
            LOG.error("cannot send a response: %s", error)

    def _stop(self, inbox: Inbox) -> None:
        """End the subscription, and send errors to the callers that wait, also those of unread requests."""
        if not inbox.is_drained:
            with contextlib.suppress(SbusError, OSError):
                self._take_in(inbox, is_waiting=False)  # what has arrived, and is read by no call
        packets = [self._dispatcher.handle(item, time.time()) for item in inbox.take_many(len(inbox))]
        self._dispatcher.watch = None
        self._link.change(partial(self._end, inbox))
        with contextlib.suppress(SbusError, OSError):
            for stream in self._dispatcher.streams.all():
                self._end_stream(stream)
            for packet in filter(None, (*packets, *self._dispatcher.stop())):
                self._link.send(packet)
        self._link.push()

    def _end(self, inbox: Inbox) -> None:
        """End the subscription of *inbox*, and take turns no more."""
        self._link.session.turns.end()
        self._link.session.unsubscribe_all(inbox)


def _plain(
    result: Result | Awaitable[Result] | Iterator[Result] | AsyncIterator[Result],
) -> Result | Iterator[Result] | AsyncIterator[Result]:
    """Return the result of a handler. Raises TypeError if it is awaitable."""
    if not inspect.isawaitable(result):
        return result
    if inspect.iscoroutine(result):
        result.close()
    raise InvalidResultError("cannot run a coroutine function as a handler; serve it on an AsyncBus")
