"""A session on a socket, for asyncio: sends, reads, times out, reconnects. :class:`~sbusd.client.aio.AsyncBus` is its face.

Rules:

1. Who has to wait to send takes a *turn*. Turns come in the order in which they were taken, and a packet that waits stays with its
   turn, so cancelling the wait takes the packet back, whole, and moves no other.
2. A call's packets enter the session only when its turn has come, and the next turn only when they are gone: calls that are given up
   while the socket is full cannot pile up.
3. Waking somebody hands nothing over: who was woken takes the item himself. So a cancelled wait loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from sbusd.client.backoff import Backoff
from sbusd.client.connection import RECEIVE_BYTES, Target, is_gone, open_socket, packet_limit, send_failure
from sbusd.client.deadline import Deadline
from sbusd.client.errors import (
    AnswerLost,
    Closed,
    Disconnected,
    NoBus,
    PayloadTooLarge,
    ProtocolError,
    RemoteRefusal,
    SbusError,
    disconnection,
)
from sbusd.client.inbox import Inbox
from sbusd.client.ledger import Call
from sbusd.client.messages import Item
from sbusd.client.procedure import Begin, Procedure, Settle
from sbusd.client.session import Session

T = TypeVar("T")

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_BATCH_PACKETS = 64
"""Packets read in one readiness event; then other tasks of the loop have their turn."""


class AioLink:
    """One connection after the other for one session, in one event loop."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self.is_open = False
        """Whether :meth:`open` has succeeded; it stays so after the end."""
        self.is_paused = False
        """Whether reading has stopped because a subscription is full."""
        self._reconnect = reconnect
        self._sock: socket.socket | None = None
        self._buffer = memoryview(mmap.mmap(-1, RECEIVE_BYTES))
        self._turns: OrderedDict[asyncio.Future[None], bytes | Callable[[], None]] = OrderedDict()
        self._arrivals: dict[asyncio.Future[None], Inbox] = {}
        self._is_writing = False
        self._is_resuming = False
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

    def fileno(self) -> int:
        """Return the socket's descriptor. Raises Closed, or Disconnected while there is none."""
        if self._sock is None:
            raise self._failure()
        return self._sock.fileno()

    async def close(self) -> None:
        """End the connection, and everybody's wait. Harmless when done already."""
        self._fail(lambda: Closed("the bus"))
        if self._reviver is not None and self._reviver is not asyncio.current_task():
            self._reviver.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reviver
            self._reviver = None

    # What the face calls

    async def send(self, packet: bytes) -> None:
        """Send *packet*, behind all that was to be sent before. On TimedOut, and any other error, it was not sent."""
        session = self.session
        if self._sock is not None and not (self._turns or session.outgoing or self._is_resuming):
            try:
                self._sock.send(packet, _SEND_FLAGS)
            except OSError:
                pass
            else:
                session.is_dirty = True
                return
        await self._take_turn(packet, Deadline("publishing", self.timeout))

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
        await self._take_turn(lambda: calls.extend(start()), deadline)
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
                await self._wait(arrival, deadline)
            finally:
                del self._arrivals[arrival]

    def push(self) -> None:
        """Send what can be sent now; the rest goes as soon as there is room. Also lets those who wait see what has changed."""
        self._drain()
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
            request.on_done = _resolver(done)
        try:
            await self._wait(done, step.deadline)
        finally:
            for request in step.requests:
                request.on_done = None

    # Reading

    def _take_in(self) -> None:
        """Take in what the socket has, some packets at a time, and wake those that wait for it."""
        for _ in range(_BATCH_PACKETS):
            if self._sock is None:
                break
            if self.session.stalled:
                if not self.is_paused:
                    self.is_paused = True
                    self._loop.remove_reader(self._sock.fileno())
                break
            if not self._read(self._sock):
                break
        if self.session.outgoing:
            self._drain()
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
            self._hang_up(f"receiving from it failed: {error.strerror}")
            return True
        if 0 < size < RECEIVE_BYTES:
            try:
                self.session.receive(bytes(self._buffer[:size]))
            except ProtocolError as error:
                self._hang_up(error.words)
        else:
            self._hang_up(f"the bus sent a packet longer than {RECEIVE_BYTES - 1} bytes" if size else None)
        return True

    def _wake(self) -> None:
        """Wake those who wait for items and now have a reason to look."""
        everybody = self.session.refusals or self._make_failure is not None
        for arrival, inbox in self._arrivals.items():
            if (everybody or len(inbox) or not inbox.patterns) and not arrival.done():
                arrival.set_result(None)

    # Writing

    async def _take_turn(self, job: bytes | Callable[[], None], deadline: Deadline) -> None:
        """Wait until *job*, a packet or what starts a call, has had its turn."""
        if self._make_failure is not None or not self.is_open:
            raise self._failure()
        turn = self._new_future()
        self._turns[turn] = job
        try:
            self._drain()
            await self._wait(turn, deadline)
        finally:
            self._turns.pop(turn, None)

    def _drain(self) -> None:
        """Send the session's packets, then give turns, for as long as the socket has room."""
        while self._flush() and self._turns and not self._is_resuming:
            turn, job = next(iter(self._turns.items()))
            if not turn.done():
                try:
                    if isinstance(job, bytes):
                        if not self._try_send(job):
                            break
                        self.session.is_dirty = True
                    else:
                        job()
                except (OSError, SbusError) as error:
                    turn.set_exception(error)
                else:
                    turn.set_result(None)
            self._turns.pop(turn, None)
        self._watch_writing(bool(self.session.outgoing or (self._turns and not self._is_resuming)))

    def _flush(self) -> bool:
        """Send the session's packets; return whether all are gone. False also when there is no connection."""
        outgoing = self.session.outgoing
        while outgoing:
            try:
                if not self._try_send(outgoing[0]):
                    return False
            except (OSError, PayloadTooLarge) as error:
                # Nobody else can be told, and what comes after it must not overtake it.
                self._hang_up(f"sending to it failed: {error}")
                return False
            outgoing.popleft()
        return self._sock is not None

    def _try_send(self, packet: bytes) -> bool:
        """Send *packet*; return False if the socket is full, or the connection has ended."""
        sock = self._sock
        if sock is None:
            return False
        try:
            sock.send(packet, _SEND_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            if not is_gone(error):
                raise send_failure(sock, packet, error) from error
            self._read_to_end(sock)
            return False
        return True

    def _read_to_end(self, sock: socket.socket) -> None:
        """Take in what the bus sent before it went: no more than a socket's buffer, so full queues take it too."""
        while self._sock is sock:
            if not self._read(sock):
                self._hang_up()

    def _watch_writing(self, wanted: bool) -> None:
        """Have the loop call when there is room, or no more."""
        if self._sock is None or wanted == self._is_writing:
            return
        self._is_writing = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self._drain)
        else:
            self._loop.remove_writer(self._sock.fileno())

    # Waiting

    def _new_future(self) -> asyncio.Future[None]:
        """Return a future of the loop."""
        return self._loop.create_future()

    async def _wait(self, future: asyncio.Future[None], deadline: Deadline) -> None:
        """Wait for *future*. Raises TimedOut, and then it is certain that *future* had no other outcome."""
        remaining = deadline.remaining()
        if remaining is None or future.done():
            await future
            return
        timer = self._loop.call_later(remaining, _expire, future, deadline)
        try:
            await future
        finally:
            timer.cancel()

    async def _await(self, calls: Sequence[Call], deadline: Deadline) -> None:
        """Wait until each of *calls* is done."""
        for call in calls:
            if not call.is_done:
                done = self._new_future()
                resolve = _resolver(done)
                call.on_done.append(resolve)
                try:
                    await self._wait(done, deadline)
                finally:
                    call.on_done.remove(resolve)

    # Ends and beginnings

    def _attach(self, sock: socket.socket) -> None:
        """Use *sock* from now on."""
        self._sock = sock
        self.session.packet_limit = packet_limit(sock)
        self.is_paused = self._is_writing = False
        self._loop.add_reader(sock.fileno(), self._take_in)

    def _failure(self) -> SbusError:
        """Return what every call raises from now on."""
        return self._make_failure() if self._make_failure else Disconnected(self.target.text)

    def _drop_socket(self) -> None:
        """Close the socket."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            self._loop.remove_writer(sock.fileno())
            sock.close()

    def _fail(self, make_failure: Callable[[], SbusError]) -> None:
        """End for good: everybody who waits, and everybody who comes, is told *make_failure*'s error."""
        self._drop_socket()
        self._make_failure = make_failure
        self.session.disconnected(make_failure)
        turns, self._turns = self._turns, OrderedDict()
        for turn in turns:
            if not turn.done():
                turn.set_exception(make_failure())
        self._wake()

    def _hang_up(self, fault: str | None = None) -> None:
        """Take down a connection that the bus has ended, or that *fault* has made useless."""
        if self._sock is None:
            return
        make_error = disconnection(self.target.text, self.session.last_words, fault)
        if not self._reconnect:
            self._fail(make_error)
            return
        self._drop_socket()
        self.session.disconnected(make_error)
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
            self._fail(disconnection(self.target.text, fault=f"connecting again failed: {error}"))
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
        self._is_resuming = True
        try:
            calls = session.resubscribe()
            self.push()
            await self._await(calls, Deadline("subscribing again", None))
        finally:
            self._is_resuming = False
        for call in calls:
            if isinstance(call.error, RemoteRefusal):
                # It was accepted once and is not any more: to try again and again would not change that.
                self._fail(disconnection(self.target.text, refusal=call.error))
            elif isinstance(call.error, AnswerLost):
                self._hang_up("answers were lost while subscribing again")
        self._drain()


def _expire(future: asyncio.Future[None], deadline: Deadline) -> None:
    """End the wait for *future*."""
    if not future.done():
        future.set_exception(deadline.expired())


def _resolver(future: asyncio.Future[None]) -> Callable[[], None]:
    """Return what resolves *future*, unless it is cancelled or expired."""

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    return resolve
