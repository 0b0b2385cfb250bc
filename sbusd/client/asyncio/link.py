"""A session on a socket, for asyncio: sends, reads, times out, reconnects. :class:`~sbusd.client.asyncio.bus.AsyncBus` is its face.

What is sent goes through its ``writer``. Waking somebody who waits to receive hands nothing over: who was woken takes the item himself.
So a cancelled wait loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sbusd.client.asyncio.timeouts import resolver, wait_for
from sbusd.client.asyncio.writer import AioWriter
from sbusd.client.backoff import Backoff
from sbusd.client.connection import RECEIVE_BYTES, Target, is_gone, open_socket, packet_limit
from sbusd.client.deadline import Deadline
from sbusd.client.errors import (
    AnswerLost,
    Closed,
    Disconnected,
    NoBus,
    ProtocolError,
    RemoteRefusal,
    SbusError,
    Unsupported,
    disconnection,
    rejection,
)
from sbusd.client.inbox import Inbox
from sbusd.client.messages import Item
from sbusd.client.operation import Begin, Procedure, Settle
from sbusd.client.outgoing import CLOSING_SECONDS
from sbusd.client.pending_replies import Call
from sbusd.client.session import Session
from sbusd.protocol.limits import MAX_BATCH_BYTES

T = TypeVar("T")

_TURN_PACKETS = 64
"""Packets read in one readiness event; then other tasks of the loop have their turn."""

_TURN_BYTES = 4 * MAX_BATCH_BYTES
"""Bytes likewise, for one packet may hold a thousand messages; a few batches, so that the next ones can be made meanwhile."""


class AioLink:
    """One connection after the other for one session, in one event loop."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool) -> None:
        self.target = target
        self.session = session
        self.writer = AioWriter(self, session)
        self.timeout = timeout
        self.is_open = False
        """Whether :meth:`open` has succeeded; it stays so after the end."""
        self.is_paused = False
        """Whether reading has stopped because a subscription is full."""
        self._reconnect = reconnect
        self._sock: socket.socket | None = None
        self._buffer = memoryview(mmap.mmap(-1, RECEIVE_BYTES))
        self._arrivals: dict[asyncio.Future[None], Inbox] = {}
        self._taken_bytes = 0
        self._backoff = Backoff(time.monotonic())
        self._reviver: asyncio.Task[None] | None = None
        self._make_failure: Callable[[], SbusError] | None = None

    async def open(self) -> None:
        """Make the first connection. Raises NoBus."""
        if self.is_open:
            return
        self._loop = asyncio.get_running_loop()
        deadline = Deadline("connecting", self.timeout)
        while True:
            try:
                sock = open_socket(self.target, 0)
                break
            except NoBus as error:
                # A full backlog: accept(2) makes room, and the kernel has no event for that.
                if not isinstance(error.__cause__, BlockingIOError) or deadline.remaining() == 0:
                    raise
                self._backoff.attempt(time.monotonic())
                await asyncio.sleep(max(0.0, self._backoff.due - time.monotonic()))
        self._attach(sock)
        self.is_open = True

    def check(self) -> None:
        """Raise why there is no connection and will be none any more, if that is so."""
        if self._make_failure is not None or not self.is_open:
            raise self._failure()

    def fileno(self) -> int:
        """Return the socket's descriptor. Raises Closed, or Disconnected while there is none."""
        if self._sock is None:
            raise self._failure()
        return self._sock.fileno()

    async def close(self) -> None:
        """End the connection, and everybody's wait, when what was published has left, if there is room for it in time.

        Harmless when done already.
        """
        try:
            if self.session.outgoing.posted_bytes and self._sock is not None:
                with contextlib.suppress(SbusError):
                    await self.writer.flush(Deadline("closing", CLOSING_SECONDS if self.timeout is None else self.timeout))
        finally:
            await self._end()

    async def _end(self) -> None:
        """End the connection, and everybody's wait, at once."""
        self._fail(lambda: Closed("the bus"))
        if self._reviver is not None and self._reviver is not asyncio.current_task():
            self._reviver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reviver
            self._reviver = None

    # What the face calls

    async def call(self, request: str, start: Callable[[], Sequence[Call]]) -> None:
        """Let *start* put calls into the session when it is their turn, and wait until each is done, whatever its outcome.

        Raises:
            TimedOut: not in time. What comes late is dropped.
            Disconnected, Closed: there is no connection to begin with.
        """
        await self.begin(start, Deadline(request, self.timeout))

    async def begin(self, start: Callable[[], Sequence[Call]], deadline: Deadline) -> None:
        """Do as :meth:`call`, until *deadline*."""
        calls: list[Call] = []
        await self.writer.take_turn(lambda: calls.extend(start()), deadline)
        await self._await(calls, deadline)

    async def run(self, procedure: Procedure[T]) -> T:
        """Do what *procedure* wants to be waited for, and return its result."""
        try:
            step = next(procedure)
            while True:
                try:
                    await self._perform(step)
                except BaseException as error:  # also a cancellation: the procedure puts in order what it has begun
                    step = procedure.throw(error)
                else:
                    step = next(procedure)
        except StopIteration as end:
            result: T = end.value
            return result

    async def receive(self, inbox: Inbox, timeout: float | None) -> Item:
        """Wait for the next item of *inbox*."""
        deadline = Deadline("receiving", timeout)
        if timeout is not None and timeout <= 0:
            self._take_in()
        while True:
            self.session.raise_refusal()
            item = inbox.take()
            if item is not None:
                if self.is_paused:
                    self.resume_reading()
                return item
            if not inbox.patterns:
                raise Closed("the subscription")
            if self._make_failure is not None:
                raise self._failure()
            arrival = self._new_future()
            self._arrivals[arrival] = inbox
            try:
                await wait_for(arrival, deadline)
            finally:
                del self._arrivals[arrival]

    def push(self) -> None:
        """Send what can be sent now; the rest goes as soon as there is room. Also lets those who wait see what has changed."""
        self.writer.drain()
        self._wake()
        self.resume_reading()

    def resume_reading(self) -> None:
        """Read again, if no subscription is full any more."""
        if self.is_paused and not self.session.stalled and self._sock is not None:
            self.is_paused = False
            self._loop.add_reader(self._sock.fileno(), self._take_in)

    async def _perform(self, step: Begin | Settle) -> None:
        """Wait for one step of a procedure."""
        if isinstance(step, Begin):
            await self.begin(step.start, step.deadline)
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
        """Wait for the next item of *inbox*, and return it with those behind it that are here."""
        if limit < 1:
            raise ValueError(f"invalid limit {limit}: must be at least 1")
        first = await self.receive(inbox, timeout)
        items = [first, *inbox.take_many(limit - 1)]
        if self.is_paused:
            self.resume_reading()
        return items

    # Reading

    def _take_in(self) -> None:
        """Take in what the socket has, some packets at a time, and wake those that wait for it."""
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

    def _read(self, sock: socket.socket) -> bool:
        """Take in one packet, or the end of the connection; return False if there is neither yet."""
        try:
            size = sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if is_gone(error):
                # The kernel reports a reset once, before the packets that came ahead of it, the reason among them.
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
        """Wake those who wait for items and now have a reason to look."""
        everybody = self.session.refusals or self._make_failure is not None
        for arrival, inbox in self._arrivals.items():
            if (everybody or len(inbox) or not inbox.patterns) and not arrival.done():
                arrival.set_result(None)

    def read_to_end(self, sock: socket.socket) -> None:
        """Take in what the bus sent before it went: no more than a socket's buffer, so full queues take it too."""
        while self._sock is sock:
            if not self._read(sock):
                self.hang_up()

    # Waiting

    def _new_future(self) -> asyncio.Future[None]:
        """Return a future of the loop."""
        return self._loop.create_future()

    async def _await(self, calls: Sequence[Call], deadline: Deadline) -> None:
        """Wait until each of *calls* is done."""
        for call in calls:
            if not call.is_done:
                done = self._new_future()
                resolve = resolver(done)
                call.on_done.append(resolve)
                try:
                    await wait_for(done, deadline)
                finally:
                    call.on_done.remove(resolve)

    # Ends and beginnings

    def _attach(self, sock: socket.socket) -> None:
        """Use *sock* from now on."""
        self._sock = sock
        self.session.outgoing.packet_limit = packet_limit(sock)
        self.is_paused = False
        self.writer.attach(sock, self._loop)
        self._loop.add_reader(sock.fileno(), self._take_in)

    def _failure(self) -> SbusError:
        """Return what every call raises from now on."""
        return self._make_failure() if self._make_failure else Disconnected(self.target.text)

    def _drop_socket(self) -> None:
        """Close the socket."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self.writer.detach()
            self._loop.remove_reader(sock.fileno())
            sock.close()

    def _fail(self, make_failure: Callable[[], SbusError]) -> None:
        """End for good: everybody who waits, and everybody who comes, is told *make_failure*'s error."""
        self._drop_socket()
        self._make_failure = make_failure
        self.session.disconnected(make_failure)
        self.writer.fail(make_failure)
        self._wake()

    def hang_up(self, fault: str | None = None) -> None:
        """Take down a connection that the bus has ended, or that *fault* has made useless."""
        if self._sock is None:
            return
        make_error = disconnection(self.target.text, self.session.last_words, fault)
        if not self._reconnect:
            self._fail(make_error)
            return
        self._drop_socket()
        self.session.disconnected(make_error, is_final=False)
        self._backoff.lost(time.monotonic())
        if self._reviver is None:
            self._reviver = self._loop.create_task(self._revive(), name="sbus reconnect")

    async def _revive(self) -> None:
        """Connect and subscribe again, trying until it succeeds."""
        try:
            while self._sock is None and self._make_failure is None:
                await self._connect_again()
        except Exception as error:
            # Whoever waits must not wait for a task that is gone.
            self._fail(disconnection(self.target.text, fault=f"cannot reconnect: {error}"))
            raise
        finally:
            self._reviver = None

    async def _connect_again(self) -> None:
        """Try once, when it is time, to connect and to subscribe again."""
        backoff, session = self._backoff, self.session
        await asyncio.sleep(max(0.0, backoff.due - time.monotonic()))
        backoff.attempt(time.monotonic())
        session.attempted()
        try:
            sock = open_socket(self.target, 0)
        except NoBus:
            return
        now = time.monotonic()
        backoff.connected(now)
        # Before any packet of the new connection is read, so that it stands in front of them.
        session.reconnected(backoff.attempts, now - backoff.since)
        self._attach(sock)
        self.writer.is_resuming = True
        try:
            calls = session.resubscribe()
            self.push()
            await self._await(calls, Deadline("subscribing again", None))
        finally:
            self.writer.is_resuming = False
        for call in calls:
            if isinstance(call.error, RemoteRefusal | Unsupported):
                # It was accepted once and is not any more: to try again and again would not change that.
                self._fail(rejection(self.target.text, call.error))
            elif isinstance(call.error, AnswerLost):
                self.hang_up("the bus discarded responses while this client subscribed again")
        self.writer.drain()
