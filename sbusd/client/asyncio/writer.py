"""What an :class:`~sbusd.client.asyncio.link.AioLink` sends: in which order, what together, and who waits for it.

Rules:

1. Who has to wait to send takes a *turn*. Turns come in the order in which they were taken, and a packet that waits stays with its
   turn, so cancelling the wait takes the packet back, whole, and moves no other.
2. A call's packets enter the session only when its turn has come, and the next turn only when they are gone: calls that are given up
   while the socket is full cannot pile up.
3. A packet that is published alone leaves at once. Where the bus takes batches, those that follow it closely leave together at the end
   of the loop's iteration, or as soon as they fill one. While the socket is full they wait in the session, as many as fill a batch;
   who comes then takes a turn.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from sbusd.client.asyncio.timeouts import wait_for
from sbusd.client.connection import is_gone, send_failure
from sbusd.client.deadline import Deadline
from sbusd.client.errors import PayloadTooLarge, SbusError
from sbusd.client.outgoing import POSTED_BYTES, POSTED_SECONDS
from sbusd.client.pacing import Paced
from sbusd.client.session import Session

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


TOGETHER_SECONDS = 10e-6
"""What is published no later than this after a packet that has left is one of many: several times what publishing takes, and less than
the time of any answer, so that who asks and answers never waits for the end of an iteration."""


class Line(Protocol):
    """The link, as its writer sees it."""

    timeout: float | None
    """Seconds that a publication may wait."""

    def check(self) -> None:
        """Raise why nothing can be sent any more, if it cannot."""

    def read_to_end(self, sock: socket.socket) -> None:
        """Take in what the bus sent before it went, and take note that it has gone."""

    def hang_up(self, fault: str | None = None) -> None:
        """Give up the connection, for *fault*."""


class AioWriter:
    """The sending half of a link, in one event loop."""

    def __init__(self, line: Line, session: Session) -> None:
        self.turns: OrderedDict[asyncio.Future[None], bytes | Callable[[], None]] = OrderedDict()
        """Who waits to send, in order."""
        self.is_resuming = False
        """Whether subscriptions are being made anew on a new connection, so that nobody has a turn."""
        self._line = line
        self._session = session
        self._outgoing = session.outgoing
        self._sock: socket.socket | None = None
        self._is_writing = False
        self.clock: Callable[[], float] = time.monotonic
        """What the time is that says which packets follow each other closely."""
        self._is_publisher = False
        self._company_until = 0.0
        self._gathering = 0
        self._drainer: asyncio.Handle | None = None

    def attach(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Send on *sock* from now on."""
        self._sock = sock
        self._loop = loop
        self._is_writing = False
        self._company_until = 0.0

    def detach(self) -> None:
        """Send on no socket."""
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
        self._sock = None

    def fail(self, make_failure: Callable[[], SbusError]) -> None:
        """Tell everybody who waits for a turn *make_failure*'s error."""
        turns, self.turns = self.turns, OrderedDict()
        for turn in turns:
            if not turn.done():
                turn.set_exception(make_failure())

    async def send(self, packet: bytes) -> None:
        """Send *packet*, behind all that was to be sent before, or let it wait for others to leave with.

        On TimedOut, and any other error, it was not sent.
        """
        if not self.send_now(packet):
            await self.send_later(packet)

    def send_now(self, packet: bytes) -> bool:
        """Do as :meth:`send` if that can be done without waiting; return whether it was."""
        outgoing = self._outgoing
        if self._sock is None or self.turns or self.is_resuming:
            return False
        pacing = self._session.pacing
        if pacing.is_on is not (pacing.always or isinstance(packet, Paced)):
            pacing.prepare(packet)
        now = self.clock() if outgoing.takes_batches else 0.0
        if outgoing or now < self._company_until or (self._gathering and outgoing.takes_batches):
            return self._post(packet)
        try:
            self._sock.send(packet, _SEND_FLAGS)
        except OSError:
            return False
        self._session.is_dirty = True
        if outgoing.takes_batches:
            self._company_until = now + TOGETHER_SECONDS
        else:
            self._note_sent()
        return True

    async def send_later(self, packet: bytes) -> None:
        """Send *packet* when its turn has come. On TimedOut, and any other error, it was not sent."""
        await self.take_turn(packet, Deadline("publishing", self._line.timeout))

    def begin_gathering(self) -> None:
        """Let what is sent from now on leave together, beyond one iteration of the loop. Raises Disconnected, Closed."""
        self._line.check()
        if not self._gathering:
            self._ask_for_batches()
        self._gathering += 1

    async def end_gathering(self) -> None:
        """Send what was gathered, waiting for room where need be, if nobody else gathers. Raises what :meth:`flush` raises."""
        self._gathering -= 1
        if not self._gathering and self._outgoing:
            await self.flush()

    async def flush(self, deadline: Deadline | None = None) -> None:
        """Send all that waits, until *deadline* or for as long as any call may take.

        Raises:
            TimedOut: there was no room in time; what is left still waits.
            Disconnected, Closed: there is no connection.
        """
        await self.take_turn(lambda: None, deadline or Deadline("flushing", self._line.timeout))

    async def take_turn(self, job: bytes | Callable[[], None], deadline: Deadline) -> None:
        """Wait until *job*, a packet or what starts a call, has had its turn."""
        self._line.check()
        turn = self._loop.create_future()
        self.turns[turn] = job
        try:
            self.drain()
            await wait_for(turn, deadline)
        finally:
            self.turns.pop(turn, None)

    def drain(self) -> None:
        """Send the session's packets, then give turns, for as long as the socket has room."""
        while self._flush() and self.turns and not self.is_resuming:
            if not self._give_turns():
                break
        self._watch_writing(bool(self._outgoing or (self.turns and not self.is_resuming)))

    def _give_turns(self) -> bool:
        """Give the next turn, or as many as fill a batch; return False if the socket is full."""
        outgoing = self._outgoing
        while self.turns:
            turn, job = next(iter(self.turns.items()))
            joins = isinstance(job, bytes) and outgoing.takes_batches
            if not turn.done():
                if isinstance(job, bytes) and self._session.pacing.prepare(job) and not joins:
                    return True  # that goes first
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
        """Send the session's packets; return whether all are gone. False also when there is no connection."""
        outgoing = self._outgoing
        while outgoing:
            try:
                if not self._try_send(outgoing.head()):
                    return False
            except (OSError, PayloadTooLarge) as error:
                # Nobody else can be told, and what comes after it must not overtake it.
                self._line.hang_up(f"cannot send: {error}")
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
            self._line.read_to_end(sock)
            return False
        return True

    def _watch_writing(self, wanted: bool) -> None:
        """Have the loop call when there is room, or no more."""
        if self._sock is None or wanted == self._is_writing:
            return
        self._is_writing = wanted
        if wanted:
            self._loop.add_writer(self._sock.fileno(), self.drain)
        else:
            self._loop.remove_writer(self._sock.fileno())

    def _note_sent(self) -> None:
        """Take note that a packet has left to a bus of which it is not known whether it takes batches."""
        if self._is_publisher:
            self._ask_for_batches()
        else:
            self._is_publisher = True  # who publishes once has no use for batches

    def _ask_for_batches(self) -> None:
        """Ask the bus whether it takes batches, unless that has been done."""
        self._session.ask_for_batches()
        if self._outgoing:
            self.drain()

    def _post(self, packet: bytes) -> bool:
        """Let *packet* wait for the end of the iteration, or of the time while somebody gathers, or for a full batch.

        Return False if it cannot wait so, because batches are not known or one is full already.
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
        """Send what was published meanwhile."""
        self._drainer = None
        if self._outgoing:
            self.drain()
