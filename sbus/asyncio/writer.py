"""The sending half of an :class:`~sbus.asyncio.link.AsyncLink`: the order of packets, their batches, and the tasks that wait.

Rules:

1. A task that has to wait to send takes a *turn*. Turns come in the order in which they were taken. A packet that waits stays with its
   turn, so cancelling the wait removes the whole packet, and moves no other.
2. A call's packets enter the session only when its turn has come, and the next turn comes only when they have been sent: calls that are
   abandoned while the socket is full cannot pile up.
3. A single packet is sent at once. If the bus takes batches, packets that closely follow it leave together: at the end of the loop's
   iteration, or as soon as they fill a batch. While the socket is full they wait in the session, up to one batch; the next task takes
   a turn.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from sbus.bus_socket import Target, is_gone, send_failure
from sbus.errors import PayloadTooLarge, SbusError, TimedOut
from sbus.features import Paced
from sbus.operations import Deadline
from sbus.outgoing import POSTED_BYTES, POSTED_SECONDS
from sbus.session import Session

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


TOGETHER_SECONDS = 10e-6
"""A packet that is published no later than this after another is one of many. Several times the duration of a publication, and less than
any round trip, so that requests and responses never wait for the end of an iteration."""


class WriterLink(Protocol):
    """The link, as its writer uses it."""

    timeout: float | None
    """Seconds that a publication may wait."""
    target: Target
    """What it connects to."""

    def check(self) -> None:
        """Raise the error that every call raises, if the connection has ended for good or was never opened."""

    def check_loop(self) -> None:
        """Raise RuntimeError in another event loop than that of the link."""

    def read_to_end(self, sock: socket.socket) -> None:
        """Receive the packets that the bus sent before it closed, and close the connection."""

    def hang_up(self, fault: str | None = None) -> None:
        """Close the connection, because of *fault*."""


class AsyncWriter:
    """The sending half of a link, in one event loop."""

    def __init__(self, link: WriterLink, session: Session) -> None:
        self.turns: OrderedDict[asyncio.Future[None], bytes | Callable[[], object]] = OrderedDict()
        """The tasks that wait to send, in order."""
        self.is_resuming = False
        """Whether a new connection is subscribing again, so that no turn comes."""
        self._link = link
        self._session = session
        self._outgoing = session.outgoing
        self._sock: socket.socket | None = None
        self._is_writing = False
        self.clock: Callable[[], float] = time.monotonic
        """The clock for which packets closely follow each other."""
        self._is_publisher = False
        self._together_until = 0.0
        self._gathering = 0
        self._drainer: asyncio.Handle | None = None

    def attach(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Send on *sock* from now on."""
        self._sock = sock
        self._loop = loop
        self._is_writing = False
        self._together_until = 0.0

    def detach(self) -> None:
        """Send on no socket."""
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
        self._sock = None

    def forked(self) -> None:
        """Send on no socket, without the event loop, which is that of the parent process."""
        self._sock = None
        self.turns.clear()

    def fail(self, make_failure: Callable[[], SbusError]) -> None:
        """Fail all turns with errors of *make_failure*."""
        turns, self.turns = self.turns, OrderedDict()
        for turn in turns:
            if not turn.done():
                turn.set_exception(make_failure())

    async def send(self, packet: bytes) -> None:
        """Send *packet* after all packets before it, or keep it to leave together with others.

        On TimedOut, and any other error, it was not sent.
        """
        if not self.send_now(packet):
            await self.send_later(packet)

    def send_now(self, packet: bytes) -> bool:
        """Do as :meth:`send`, unless the packet has to wait for room; return whether it was sent or kept."""
        outgoing = self._outgoing
        if self._sock is None or self.turns or self.is_resuming or asyncio.get_running_loop() is not self._loop:
            return False
        pacing = self._session.pacing
        if pacing.is_on is not (pacing.always or isinstance(packet, Paced)):
            pacing.prepare(packet)
        now = self.clock() if outgoing.takes_batches else 0.0
        if outgoing or now < self._together_until or (self._gathering and outgoing.takes_batches):
            return self._post(packet)
        try:
            self._sock.send(packet, _SEND_FLAGS)
        except OSError:
            return False
        self._session.is_dirty = True
        if outgoing.takes_batches:
            self._together_until = now + TOGETHER_SECONDS
        else:
            self._note_sent()
        return True

    async def send_later(self, packet: bytes) -> None:
        """Send *packet* when its turn has come. On TimedOut, and any other error, it was not sent."""
        self._link.check_loop()
        await self.take_turn(packet, Deadline("publishing", self._link.timeout))

    def begin_gathering(self) -> None:
        """Gather the packets that are sent from now on, beyond one iteration of the loop. Raises Disconnected, Closed."""
        self._link.check()
        if not self._gathering:
            self._ask_for_batches()
        self._gathering += 1

    async def end_gathering(self) -> None:
        """Send the gathered packets, and wait for room if necessary; not inside another gathering. Raises what :meth:`flush` raises."""
        self._gathering -= 1
        if not self._gathering and self._outgoing:
            await self.flush()

    def end_gathering_now(self) -> None:
        """Send the gathered packets; some wait if the socket is full."""
        self._gathering -= 1
        if not self._gathering and self._outgoing:
            self.drain()

    async def flush(self, deadline: Deadline | None = None) -> None:
        """Send all packets that wait, until *deadline*, by default the timeout of the bus.

        Raises:
            TimedOut: there was no room in time; the rest still waits.
            Disconnected, Closed: there is no connection.
        """
        await self.take_turn(lambda: None, deadline or Deadline("flushing", self._link.timeout))

    async def take_turn(self, job: bytes | Callable[[], object], deadline: Deadline) -> None:
        """Wait until *job*, a packet or a function that starts a call, has had its turn."""
        self._link.check()
        turn = self._loop.create_future()
        self.turns[turn] = job
        try:
            self.drain()
            await wait_for(turn, deadline)
        except TimedOut as error:
            if self._sock is None or self.is_resuming:
                raise error.without_connection(self._link.target.text) from None
            raise
        finally:
            self.turns.pop(turn, None)

    def drain(self) -> None:
        """Send the session's packets, then give turns, while the socket has room."""
        while self._flush() and self.turns and not self.is_resuming:
            if not self._give_turns():
                break
        self._watch_writing(bool(self._outgoing or (self.turns and not self.is_resuming)))

    def _give_turns(self) -> bool:
        """Give the next turn, or as many turns as fill a batch; return False if the socket is full."""
        outgoing = self._outgoing
        while self.turns:
            turn, job = next(iter(self.turns.items()))
            joins = isinstance(job, bytes) and outgoing.takes_batches
            if not turn.done():
                if isinstance(job, bytes) and self._session.pacing.prepare(job) and not joins:
                    return True  # the control packet goes first
                try:
                    if not isinstance(job, bytes):
                        job()
                    elif joins:
                        outgoing.post(outgoing.fitting(job))
                    elif not self._try_send(job):
                        return False
                    self._session.is_dirty |= isinstance(job, bytes)
                except (OSError, SbusError) as error:
                    turn.set_exception(error)
                else:
                    turn.set_result(None)
            self.turns.pop(turn, None)
            if not joins or outgoing.posted_bytes >= POSTED_BYTES:
                break
        return True

    def _flush(self) -> bool:
        """Send the session's packets; return whether all were sent. False also when there is no connection."""
        outgoing = self._outgoing
        while outgoing:
            try:
                if not self._try_send(outgoing.head()):
                    return False
            except (OSError, PayloadTooLarge) as error:
                # No call waits for this packet to raise the error, and later packets must not overtake it.
                self._link.hang_up(f"cannot send: {error}")
                return False
            outgoing.sent()
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
            self._link.read_to_end(sock)
            return False
        return True

    def _watch_writing(self, wanted: bool) -> None:
        """Let the loop call :meth:`drain` when there is room, or no longer."""
        if self._sock is None or wanted == self._is_writing:
            return
        self._is_writing = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self.drain)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _note_sent(self) -> None:
        """Note that a packet was sent to a bus that may or may not take batches."""
        if self._is_publisher:
            self._ask_for_batches()
        else:
            self._is_publisher = True  # a program that publishes only once has no use for batches

    def _ask_for_batches(self) -> None:
        """Ask the bus whether it takes batches, unless it has been asked."""
        self._session.ask_for_batches()
        if self._outgoing:
            self.drain()

    def _post(self, packet: bytes) -> bool:
        """Keep *packet* until the end of the iteration, or of the time limit while packets are gathered, or until a batch is full.

        Return False if that is not possible, because the bus does not take batches, or a batch is already full.
        """
        outgoing = self._outgoing
        if not outgoing.takes_batches or outgoing.posted_bytes >= POSTED_BYTES or len(packet) > outgoing.packet_limit:
            return False
        outgoing.post(packet)
        self._session.is_dirty = True
        if outgoing.posted_bytes >= POSTED_BYTES:
            self.drain()
        elif self._drainer is None:
            if self._gathering:
                self._drainer = self._loop.call_later(POSTED_SECONDS, self._end_iteration)
            else:
                self._drainer = self._loop.call_soon(self._end_iteration)
        return True

    def _end_iteration(self) -> None:
        """Send the packets that were published meanwhile."""
        self._drainer = None
        if self._outgoing:
            self.drain()


async def wait_for(future: asyncio.Future[None], deadline: Deadline) -> None:
    """Wait for *future*. Raises TimedOut; then *future* has no other outcome."""
    remaining = deadline.remaining()
    if remaining is None or future.done():
        await future
        return
    timer = future.get_loop().call_later(remaining, _expire, future, deadline)
    try:
        await future
    finally:
        timer.cancel()


def resolver(future: asyncio.Future[None]) -> Callable[[], None]:
    """Return a function that resolves *future*, unless that is cancelled or expired."""

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    return resolve


def _expire(future: asyncio.Future[None], deadline: Deadline) -> None:
    """End the wait for *future*."""
    if not future.done():
        future.set_exception(deadline.expired())
