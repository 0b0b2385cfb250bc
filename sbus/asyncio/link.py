"""A session on a socket, for asyncio: sends, reads, times out, reconnects. :class:`~sbus.asyncio.bus.AsyncBus` is its face.

Its ``writer`` sends the packets. A task that waits to receive is only woken; it then takes the item from the inbox itself. So a
cancelled wait loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from sbus import forks
from sbus.arguments import check_count
from sbus.asyncio.writer import AsyncWriter, resolver, wait_for
from sbus.bus_calls import Call
from sbus.bus_socket import RECEIVE_BYTES, State, Target, is_gone, open_socket, packet_limit, receive_buffer
from sbus.bus_unit import WAIT_SECONDS, UnitCheck, explained, unit_of
from sbus.errors import (
    AnswerLost,
    Closed,
    Disconnected,
    ForkedError,
    NoBus,
    ProtocolError,
    RemoteRefusal,
    SbusError,
    TimedOut,
    Unsupported,
    disconnection,
    rejection,
)
from sbus.inbox import Inbox
from sbus.items import Item
from sbus.late_modules import import_late_modules
from sbus.operations import Begin, Deadline, Operation, Send, Step, until_check
from sbus.outgoing import CLOSING_SECONDS
from sbus.protocol.packets import MAX_BATCH_BYTES
from sbus.reconnection import ReconnectAttempts
from sbus.resubscription import resubscribe
from sbus.session import Session

T = TypeVar("T")

_TURN_PACKETS = 64
"""Packets read in one readiness event; then the loop runs other tasks."""

_TURN_BYTES = 4 * MAX_BATCH_BYTES
"""The same limit in bytes, because one packet may hold a thousand messages; a few batches, so that the bus can make the next ones."""


class AsyncLink:
    """The connections of one session, one after another, in one event loop."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self.writer = AsyncWriter(self, session)
        # The names that SyncLink has, without a call in between.
        self.send_now, self.send_later, self.flush = self.writer.send_now, self.writer.send_later, self.writer.flush
        self.begin_gathering, self.end_gathering = self.writer.begin_gathering, self.writer.end_gathering
        self.is_open = False
        """Whether :meth:`open` has succeeded; it stays True after the end."""
        self.is_paused = False
        """Whether reading has stopped because a subscription is full."""
        self._reconnect = reconnect
        self._sock: socket.socket | None = None
        self._buffer = receive_buffer()
        self._arrivals: dict[asyncio.Future[None], Inbox] = {}
        self._taken_bytes = 0
        self._backoff = ReconnectAttempts(time.monotonic())
        self._reviver: asyncio.Task[None] | None = None
        self._make_failure: Callable[[], SbusError] | None = None
        self._log = session.notice_log.connection
        unit = unit_of(target.text)
        self._unit = None if unit is None else UnitCheck(unit)

    def entered(self) -> contextlib.AbstractContextManager[object]:
        """Do nothing: no other thread uses this link. Its counterpart is that of SyncLink."""
        return contextlib.nullcontext()

    async def open(self) -> None:
        """Make the first connection, unless that has been done. Raises NoBus."""
        if self.is_open:
            return
        self._loop = asyncio.get_running_loop()
        deadline = Deadline("connecting", self.timeout)
        while True:
            try:
                sock = open_socket(self.target, 0)
                break
            except NoBus as error:
                # The backlog is full. accept(2) makes room, and the kernel has no event for that.
                if error.errno != errno.EAGAIN or deadline.remaining() == 0:
                    raise await self._loop.run_in_executor(None, explained, error, self._unit) from None
                self._backoff.attempt(time.monotonic())
                await asyncio.sleep(max(0.0, self._backoff.due - time.monotonic()))
        import_late_modules("asyncio")  # services connect again themselves; the modules take a third of the time of asyncio
        self._attach(sock)
        self.is_open = True
        forks.watch(self)
        self._log.connected(self.target.text)
        self._log.write()

    def check(self) -> None:
        """Raise the error that every call raises, if the connection has ended for good or was never opened."""
        if not self.is_open and self._make_failure is None:
            raise RuntimeError("the bus is not connected: use 'async with AsyncBus.connect(...)' or 'await AsyncBus.connect(...)'")
        if self._make_failure is not None:
            raise self._failure()

    def fileno(self) -> int:
        """Return the socket's descriptor. Raises Closed, or Disconnected while there is none."""
        if self._sock is None:
            raise self._failure()
        return self._sock.fileno()

    def forked(self) -> None:
        """Give up the parent's connection, for good: the event loop is the parent's too."""
        sock, self._sock = self._sock, None
        if self._make_failure is None:
            self._make_failure = make_failure = partial(ForkedError, self.target.text)
            self.session.forked(make_failure)
        # Not by the event loop, whose epoll object is shared: it would remove the parent's socket from it.
        self.writer.forked()
        if sock is not None:
            sock.close()

    async def close(self) -> None:
        """Send publications that wait, if there is room for them in time, close the connection, and end all waits.

        Harmless when already closed.
        """
        try:
            if self.session.outgoing.posted_bytes and self._sock is not None:
                with contextlib.suppress(SbusError):
                    await self.writer.flush(Deadline("closing", CLOSING_SECONDS if self.timeout is None else self.timeout))
        finally:
            await self._end()
        self.session.refusals.report()

    async def _end(self) -> None:
        """Close the connection, and end all waits, at once."""
        self._fail(lambda: Closed("the bus"))
        if self._reviver is not None and self._reviver is not asyncio.current_task():
            self._reviver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reviver
            self._reviver = None

    # For the face

    async def run(self, operation: Operation[T]) -> T:
        """Perform the steps of *operation*, and return its result."""
        self.check_loop()
        try:
            step = next(operation)
            while True:
                try:
                    await self._perform(step)
                except BaseException as error:  # also a cancellation: the operation undoes what it has begun
                    step = operation.throw(error)
                else:
                    step = next(operation)
        except StopIteration as end:
            result: T = end.value
            return result
        except (Exception, asyncio.CancelledError):
            self.push()  # sends the packets that undo it, and reads again if an inbox that was full is gone
            raise

    async def receive(self, inbox: Inbox, timeout: float | None) -> Item:
        """Wait for the next item of *inbox*."""
        self.check_loop()
        deadline = Deadline("receiving", timeout)
        if timeout is not None and timeout <= 0:
            self._take_in()
        while True:
            self.session.refusals.report()
            item = inbox.take()
            if item is not None:
                if self.is_paused:
                    self.resume_reading()
                return item
            if not inbox.is_begun:
                inbox.is_used = True
                raise RuntimeError("the subscription is not open: use 'async with' or 'await' first")
            if inbox.has_ended:
                raise Closed("the subscription")
            if self._make_failure is not None:
                raise self._failure()
            arrival = self._new_future()
            self._arrivals[arrival] = inbox
            try:
                await wait_for(arrival, deadline)
            finally:
                del self._arrivals[arrival]

    def drain(self, inbox: Inbox, keep: bytes = b"") -> None:
        """Begin to end the subscription of *inbox*, but for patterns that begin with *keep*."""
        self.change(partial(self.session.drain, inbox, keep))

    @property
    def state(self) -> State:
        """The state of the connection."""
        if self._make_failure is not None or not self.is_open:
            return "closed"
        return "connected" if self._sock is not None else "reconnecting"

    def check_loop(self) -> None:
        """Raise RuntimeError in another event loop, or another thread, than that which opened the link."""
        if self.is_open and self._make_failure is None and asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("this AsyncBus belongs to another event loop: connect one for each loop, or use run_coroutine_threadsafe()")

    def change(self, work: Callable[[], object]) -> None:
        """Call *work*, which changes the state, and send what follows from it."""
        work()
        self.push()

    def push(self) -> None:
        """Send the packets that can be sent now, and the rest as soon as there is room. Wake waiting tasks, so that they see changes."""
        self.writer.drain()
        self._wake()
        self.resume_reading()

    def resume_reading(self) -> None:
        """Read again, unless a subscription is still full."""
        if self.is_paused and not self.session.stalled and self._sock is not None:
            self.is_paused = False
            self._loop.add_reader(self._sock.fileno(), self._take_in)

    async def _perform(self, step: Step) -> None:
        """Perform one step of an operation."""
        if isinstance(step, Begin):
            await self.writer.take_turn(step.begin, step.deadline)
            await self._await(step.calls, step.deadline)
            return
        if isinstance(step, Send):
            await self.writer.send(step.packet)
            return
        if any(request.is_done for request in step.requests):
            return
        done = self._new_future()
        for request in step.requests:
            request.on_done = resolver(done)
        try:
            await wait_for(done, step.deadline)
        finally:
            for request in step.requests:
                request.on_done = None

    async def receive_many(self, inbox: Inbox, limit: int, timeout: float | None) -> list[Item]:
        """Wait for the next item of *inbox*, and return it with the items after it that are already here."""
        check_count(limit, "limit", 1)
        first = await self.receive(inbox, timeout)
        items = [first, *inbox.take_many(limit - 1)]
        if self.is_paused:
            self.resume_reading()
        return items

    # Reading

    def _take_in(self) -> None:
        """Receive some packets that the socket has, and wake the tasks that wait for them."""
        begun = self._taken_bytes
        for _ in range(_TURN_PACKETS):
            if self._sock is None or self._taken_bytes - begun >= _TURN_BYTES:
                break
            if self.session.stalled:
                if not self.is_paused:
                    self.is_paused = True
                    self._loop.remove_reader(self._sock.fileno())
                break
            if not self._read(self._sock):
                break
        if self.session.outgoing:
            self.writer.drain()
        self._wake()
        if self._log.pending:
            self._log.write()

    def _read(self, sock: socket.socket) -> bool:
        """Receive one packet, or the end of the connection; return False if there is neither yet."""
        try:
            size = sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if is_gone(error):
                # The kernel reports a reset once, before the packets that were sent before it; one of them may have the reason.
                return self._read(sock)
            self.hang_up(f"cannot receive: {error.strerror}")
            return True
        self._taken_bytes += size
        if 0 < size < RECEIVE_BYTES:
            try:
                self.session.receive(bytes(self._buffer[:size]))
            except ProtocolError as error:
                self.hang_up(error.words)
        else:
            self.hang_up(f"the bus sent a packet longer than {RECEIVE_BYTES - 1} bytes" if size else None)
        return True

    def _wake(self) -> None:
        """Wake the tasks that wait for items and now have a reason to continue."""
        wakes_all = self.session.refusals or self._make_failure is not None
        for arrival, inbox in self._arrivals.items():
            if (wakes_all or len(inbox) or inbox.has_ended) and not arrival.done():
                arrival.set_result(None)

    def read_to_end(self, sock: socket.socket) -> None:
        """Receive the packets that the bus sent before it closed: at most a socket's buffer, so full queues accept them too."""
        while self._sock is sock:
            if not self._read(sock):
                self.hang_up()

    # Waiting

    def _new_future(self) -> asyncio.Future[None]:
        """Return a future of the loop."""
        return self._loop.create_future()

    async def _await(self, calls: Sequence[Call], deadline: Deadline) -> None:
        """Wait until each of *calls* is done."""
        checks = iter(WAIT_SECONDS) if self._unit is not None else iter(())
        limit = until_check(checks, deadline)
        for call in calls:
            while not call.is_done:
                done = self._new_future()
                resolve = resolver(done)
                call.on_done.append(resolve)
                try:
                    await wait_for(done, limit)
                except TimedOut:
                    if limit is deadline:
                        raise
                    await self._check_unit()
                    limit = until_check(checks, deadline)
                finally:
                    call.on_done.remove(resolve)

    async def _check_unit(self) -> None:
        """Close the connection if the service of the bus fails to start, so that no caller waits for it."""
        if self._unit is not None and (reason := await self._loop.run_in_executor(None, self._unit.failure)):
            self.hang_up(reason)

    # Disconnecting and reconnecting

    def _attach(self, sock: socket.socket) -> None:
        """Use *sock* from now on."""
        self._sock = sock
        self.session.outgoing.packet_limit = packet_limit(sock)
        self.is_paused = False
        self.writer.attach(sock, self._loop)
        self._loop.add_reader(sock.fileno(), self._take_in)

    def _failure(self) -> SbusError:
        """Return the error that every call raises from now on."""
        return self._make_failure() if self._make_failure else Disconnected(self.target.text)

    def _drop_socket(self) -> None:
        """Close the socket."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self.writer.detach()
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _fail(self, make_failure: Callable[[], SbusError]) -> None:
        """End for good: all waits, and all later calls, raise an error of *make_failure*."""
        self._drop_socket()
        self._make_failure = make_failure
        self.session.disconnected(make_failure)
        self.writer.fail(make_failure)
        self._wake()
        self._log.write()

    def hang_up(self, fault: str | None = None) -> None:
        """Close a connection that the bus has closed, or that *fault* has made useless."""
        if self._sock is None:
            return
        make_error = disconnection(self.target.text, self.session.last_refusal, fault)
        if not self._reconnect:
            self._fail(make_error)
            return
        self._drop_socket()
        self.session.disconnected(make_error, is_final=False)
        self._backoff.lost(time.monotonic())
        if self._reviver is None:
            reviver = self._loop.create_task(self._revive(), name="sbus reconnect")
            if not reviver.done():  # an eager task may have ended already
                self._reviver = reviver
        self._log.write()

    async def _revive(self) -> None:
        """Connect and subscribe again, with as many attempts as it takes."""
        try:
            while self._sock is None and self._make_failure is None:
                await self._connect_again()
        except Exception as error:
            # Other tasks must not wait for a task that has ended.
            self._fail(disconnection(self.target.text, fault=f"cannot reconnect: {error}"))
            raise
        finally:
            self._reviver = None

    async def _connect_again(self) -> None:
        """Make one attempt, when it is due, to connect and to subscribe again."""
        backoff, session = self._backoff, self.session
        await asyncio.sleep(max(0.0, backoff.due - time.monotonic()))
        backoff.attempt(time.monotonic())
        session.counters.reconnect_attempts += 1
        try:
            sock = open_socket(self.target, 0)
        except NoBus:
            return
        now = time.monotonic()
        backoff.connected(now)
        # Before any packet of the new connection is read, so that Reconnected precedes them in every subscription.
        session.reconnected(backoff.attempts, now - backoff.since)
        self._log.write()
        self._attach(sock)
        self.writer.is_resuming = True
        try:
            calls = resubscribe(session)
            self.push()
            await self._await(calls, Deadline("subscribing again", None))
        finally:
            self.writer.is_resuming = False
        for call in calls:
            if isinstance(call.error, RemoteRefusal | Unsupported):
                # The bus accepted it before and refuses it now; trying again would not change that.
                self._fail(rejection(self.target.text, call.error))
            elif isinstance(call.error, AnswerLost):
                self.hang_up("the bus discarded responses while this client subscribed again")
        self.writer.drain()
