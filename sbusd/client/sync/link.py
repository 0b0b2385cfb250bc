"""A session on a socket, for a program that waits: sends, reads, times out, reconnects. :class:`~sbusd.client.sync.bus.Bus` is its face."""

from __future__ import annotations

import contextlib
import mmap
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sbusd.client.backoff import Backoff
from sbusd.client.connection import RECEIVE_BYTES, Target, is_gone, open_socket, packet_limit, send_failure
from sbusd.client.deadline import Deadline
from sbusd.client.errors import (
    AnswerLost,
    Closed,
    Disconnected,
    InboxFull,
    NoBus,
    PayloadTooLarge,
    ProtocolError,
    RemoteRefusal,
    SbusError,
    Unsupported,
    disconnection,
    rejection,
)
from sbusd.client.inbox import Inbox
from sbusd.client.messages import Item, Message
from sbusd.client.operation import Begin, Procedure, Settle
from sbusd.client.outgoing import CLOSING_SECONDS, POSTED_BYTES, POSTED_SECONDS
from sbusd.client.pacing import Paced
from sbusd.client.pending_replies import Call
from sbusd.client.session import Session

T = TypeVar("T")

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class SyncLink:
    """One connection after the other for one session. Not thread-safe."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self._reconnect = reconnect
        sock = open_socket(target, timeout)
        session.outgoing.packet_limit = packet_limit(sock)
        self._sock: socket.socket | None = sock
        # A mapping commits only the pages that packets have touched, and reading into one spares an allocation of that size per packet.
        self._buffer = memoryview(mmap.mmap(-1, RECEIVE_BYTES))
        self._backoff = Backoff(time.monotonic())
        self._resuming: list[Call] = []
        self._make_failure: Callable[[], SbusError] | None = None
        self.clock: Callable[[], float] = time.monotonic
        """What the time is that gathered packets wait."""
        self._gathering = 0
        self._gathered_since = 0.0

    def fileno(self) -> int:
        """Return the socket's descriptor. Raises Closed, or Disconnected while there is none."""
        if self._sock is None:
            raise self._failure() if self._make_failure else Disconnected(self.target.text)
        return self._sock.fileno()

    def close(self) -> None:
        """End the connection, when what was gathered has left, if there is room for it in time. Harmless when done already."""
        try:
            if self.session.outgoing.posted_bytes and self._sock is not None:
                with contextlib.suppress(SbusError):
                    self._send_all(Deadline("closing", CLOSING_SECONDS if self.timeout is None else self.timeout))
        finally:
            self._end()

    def _end(self) -> None:
        """End the connection at once."""
        self._drop_socket()
        self._make_failure = lambda: Closed("the bus")
        self.session.disconnected(self._make_failure)

    # What the face calls

    def send(self, packet: bytes) -> None:
        """Send *packet*, behind all that was to be sent before, or gather it. On TimedOut, and any other error, it was not sent."""
        session = self.session
        if self._gathering and session.outgoing.takes_batches is not False:
            self._gather(packet)
            return
        pacing = session.pacing
        if self._sock is not None and not session.outgoing and pacing.is_on is (pacing.always or isinstance(packet, Paced)):
            try:
                self._sock.send(packet, _SEND_FLAGS)
            except OSError:
                pass
            else:
                session.is_dirty = True
                return
        self._send_waiting(packet, Deadline("publishing", self.timeout))

    def begin_gathering(self) -> None:
        """Let what is sent from now on leave together."""
        if self._make_failure is not None:
            raise self._failure()
        if not self._gathering:
            self.session.ask_for_batches()
            self.push()
        self._gathering += 1

    def end_gathering(self) -> None:
        """Send what was gathered, waiting for room where need be, if nobody else gathers. Raises what :meth:`flush` raises."""
        self._gathering -= 1
        if not self._gathering and self.session.outgoing:
            self.flush()

    def flush(self) -> None:
        """Send all that waits.

        Raises:
            TimedOut: there was no room in time; what is left still waits.
            Disconnected: there is no connection.
        """
        self._send_all(Deadline("flushing", self.timeout))

    def call(self, request: str, start: Callable[[], Sequence[Call]]) -> None:
        """Let *start* put calls into the session, and wait until each is done, whatever its outcome.

        Raises:
            TimedOut: not in time. What comes late is dropped.
            InboxFull: a full subscription stops the reading.
            Disconnected: there is no connection to begin with.
        """
        self.begin(start, Deadline(request, self.timeout))

    def begin(self, start: Callable[[], Sequence[Call]], deadline: Deadline) -> None:
        """Do as :meth:`call`, until *deadline*."""
        # Nothing is added before the last call's packets are gone, so that calls which time out cannot pile up.
        self._send_all(deadline)
        self._await(start(), deadline)

    def run(self, procedure: Procedure[T]) -> T:
        """Do what *procedure* wants to be waited for, and return its result."""
        try:
            step = next(procedure)
            while True:
                try:
                    self._perform(step)
                except BaseException as error:  # also Ctrl-C: the procedure puts in order what it has begun
                    step = procedure.throw(error)
                else:
                    step = next(procedure)
        except StopIteration as end:
            result: T = end.value
            return result

    def receive(self, inbox: Inbox, timeout: float | None) -> Item:
        """Wait for the next item of *inbox*."""
        session = self.session
        deadline = Deadline("receiving", timeout)
        while not session.refusals:
            item = inbox.take()
            if item is not None:
                return item
            if not inbox.patterns:
                raise Closed("the subscription")
            if self._sock is None or self._resuming:
                self._open_again(deadline)
            else:
                self._step(deadline)
        raise session.refusals.popleft()

    def receive_many(self, inbox: Inbox, limit: int, timeout: float | None) -> list[Item]:
        """Wait for the next item of *inbox*, and return it with those behind it that are here."""
        if limit < 1:
            raise ValueError(f"invalid limit {limit}: must be at least 1")
        first = self.receive(inbox, timeout)
        return [first, *inbox.take_many(limit - 1)]

    def iterate(self, inbox: Inbox) -> Iterator[Item]:
        """Yield what :meth:`receive` would return, one after the other, until the end; faster where nothing else is to be done."""
        session, buffer, waiting, ready = self.session, self._buffer, inbox.items, inbox.ready
        refusals = session.refusals
        while True:
            while ready and not refusals:
                yield ready.popleft()
            sock = self._sock
            if sock is not None and not (waiting or session.outgoing or session.stalled or session.refusals or self._resuming):
                try:
                    size = sock.recv_into(buffer)
                except OSError:
                    pass  # receive() meets it again
                else:
                    if (message := self._accept(size, inbox)) is not None:
                        yield message
                        continue
            try:
                item = self.receive(inbox, None)
            except Closed:
                return
            yield item

    def push(self) -> None:
        """Send what can be sent now without waiting; the rest goes with the next call."""
        if self._sock is not None:
            self._flush()

    def _gather(self, packet: bytes) -> None:
        """Keep *packet* until a batch is full, or enough time has passed since the first one."""
        outgoing = self.session.outgoing
        if len(packet) > outgoing.packet_limit or outgoing.posted_bytes >= POSTED_BYTES or self._sock is None or self._resuming:
            outgoing.fitting(packet)
            self._send_all(Deadline("publishing", self.timeout))
        self.session.pacing.prepare(packet)
        now = self.clock()
        if not outgoing.posted_bytes:
            self._gathered_since = now
        outgoing.post(packet)
        self.session.is_dirty = True
        if outgoing.posted_bytes >= POSTED_BYTES or now - self._gathered_since >= POSTED_SECONDS:
            self._gathered_since = now
            self._flush()

    def _perform(self, step: Begin | Settle) -> None:
        """Wait for one step of a procedure."""
        if isinstance(step, Begin):
            self.begin(step.start, step.deadline)
            return
        while not any(request.is_done for request in step.requests):
            self._step(step.deadline)

    # Moving packets

    def _step(self, deadline: Deadline) -> None:
        """Take in one packet, and send what is to be sent. Returns also when the connection has ended."""
        session = self.session
        if session.stalled:
            full = next(iter(session.stalled))
            raise InboxFull(tuple(full.patterns), len(full))
        if session.outgoing and not self._flush() and self._sock is None:
            return
        remaining = deadline.remaining()
        if remaining is None and not session.outgoing:
            if self._read(0):
                return
        elif self._read(socket.MSG_DONTWAIT):
            return
        self._poll(select.POLLIN | (select.POLLOUT if session.outgoing else 0), deadline)

    def _read(self, flags: int) -> bool:
        """Take in one packet, or the end of the connection; return False if there is neither yet."""
        sock = self._sock
        if sock is None:
            return True
        try:
            size = sock.recv_into(self._buffer, 0, flags)
        except BlockingIOError:
            return False
        except OSError as error:
            if not is_gone(error):
                self._hang_up(f"cannot receive: {error.strerror}")
                return True
            # The kernel reports a reset once, before the packets that came ahead of it, the reason among them.
            return self._read(flags)
        self._accept(size)
        return True

    def _accept(self, size: int, taker: Inbox | None = None) -> Message | None:
        """Take in a packet of *size* bytes, or the end of the connection; return a message that is for *taker* alone."""
        if 0 < size < RECEIVE_BYTES:
            try:
                return self.session.receive(bytes(self._buffer[:size]), taker)
            except ProtocolError as error:
                self._hang_up(error.words)
        else:
            self._hang_up(f"the bus sent a packet longer than {RECEIVE_BYTES - 1} bytes" if size else None)
        return None

    def _read_to_end(self) -> None:
        """Take in what the bus sent before it went: no more than a socket's buffer, so full queues take it too."""
        while self._sock is not None:
            if not self._read(socket.MSG_DONTWAIT):
                self._hang_up()

    def _flush(self) -> bool:
        """Send the session's packets; return whether all are gone. False also when the connection has ended."""
        outgoing = self.session.outgoing
        if outgoing.takes_batches is None and not self.session.stalled:
            self._read(socket.MSG_DONTWAIT)  # the answer may be there
        while outgoing:
            try:
                if not self._try_send(outgoing.head()):
                    return False
            except (OSError, PayloadTooLarge) as error:
                # Nobody else can be told, and what comes after it must not overtake it.
                self._hang_up(f"cannot send: {error}")
                return False
            outgoing.sent()
        return self._sock is not None

    def _try_send(self, packet: bytes) -> bool:
        """Send *packet*; return False if the socket is full, or the connection has ended."""
        if self._sock is None:
            return False
        try:
            self._sock.send(packet, _SEND_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            if not is_gone(error):
                raise send_failure(self._sock, packet, error) from error
            self._read_to_end()
            return False
        return True

    def _send_waiting(self, packet: bytes, deadline: Deadline) -> None:
        """Send *packet*, waiting for room, or a new connection, where need be."""
        self._send_all(deadline)
        # Asked each time: a new connection is not paced.
        while self.session.pacing.prepare(packet) or not self._try_send(packet):
            self._wait_writable(deadline)
            self._send_all(deadline)
        self.session.is_dirty = True

    def _send_all(self, deadline: Deadline) -> None:
        """Send the session's packets, waiting for room, or a new connection, where need be."""
        self._open_again(deadline)
        while not self._flush():
            self._wait_writable(deadline)
            self._open_again(deadline)

    def _wait_writable(self, deadline: Deadline) -> None:
        """Wait for room, and read meanwhile as far as the subscriptions have room: the bus may not read from one that does not."""
        if self._sock is None:
            return
        events = select.POLLOUT if self.session.stalled else select.POLLOUT | select.POLLIN
        if self._poll(events, deadline) & select.POLLIN:
            self._read(socket.MSG_DONTWAIT)

    def _poll(self, events: int, deadline: Deadline) -> int:
        """Wait for *events*, and return those that came. Raises TimedOut."""
        if self._sock is None:
            return 0
        remaining = deadline.remaining()
        poller = select.poll()
        poller.register(self._sock, events)
        ready = poller.poll(None if remaining is None else remaining * 1000)
        if not ready:
            raise deadline.expired()
        return ready[0][1]

    def _await(self, calls: Sequence[Call], deadline: Deadline) -> None:
        """Wait until each of *calls* is done."""
        for call in calls:
            while not call.is_done:
                self._step(deadline)

    # Ends and beginnings

    def _failure(self) -> SbusError:
        """Return what every call raises from now on."""
        return self._make_failure() if self._make_failure else Disconnected(self.target.text)

    def _drop_socket(self) -> None:
        """Close the socket."""
        sock, self._sock = self._sock, None
        self._resuming = []
        if sock is not None:
            sock.close()

    def _hang_up(self, fault: str | None = None) -> None:
        """Take down a connection that the bus has ended, or that *fault* has made useless."""
        if self._sock is None:
            return
        make_error = disconnection(self.target.text, self.session.last_words, fault)
        self._drop_socket()
        self.session.disconnected(make_error, is_final=not self._reconnect)
        if self._reconnect:
            self._backoff.lost(time.monotonic())
        else:
            self._make_failure = make_error

    def _open_again(self, deadline: Deadline) -> None:
        """See to it that there is a connection, with all subscriptions on it. Raises what stands against that."""
        while self._sock is None or self._resuming:
            if self._make_failure is not None:
                raise self._failure()
            if self._sock is None:
                self._connect_again(deadline)
            calls = self._resuming
            self._await(calls, deadline)
            self._resuming = []
            for call in calls:
                if isinstance(call.error, RemoteRefusal | Unsupported):
                    # It was accepted once and is not any more: to try again and again would not change that.
                    self._end()
                    self._make_failure = rejection(self.target.text, call.error)
                elif isinstance(call.error, AnswerLost):
                    self._hang_up("the bus discarded responses while this client subscribed again")
        if self._make_failure is not None:
            raise self._failure()

    def _connect_again(self, deadline: Deadline) -> None:
        """Connect, trying until it succeeds, and begin to subscribe again."""
        backoff = self._backoff
        while self._sock is None:
            self._sleep_until(backoff.due, deadline)
            backoff.attempt(time.monotonic())
            self.session.attempted()
            try:
                self._sock = open_socket(self.target, deadline.remaining())
                self.session.outgoing.packet_limit = packet_limit(self._sock)
            except NoBus:
                deadline.check()
        now = time.monotonic()
        backoff.connected(now)
        # Before any packet of the new connection is read, so that it stands in front of them.
        self.session.reconnected(backoff.attempts, now - backoff.since)
        self._resuming = self.session.resubscribe()

    def _sleep_until(self, due: float, deadline: Deadline) -> None:
        """Wait until *due*. Raises TimedOut if the deadline comes first."""
        pause = due - time.monotonic()
        remaining = deadline.remaining()
        if remaining is not None and remaining < pause:
            time.sleep(remaining)
            raise deadline.expired()
        if pause > 0:
            time.sleep(pause)
