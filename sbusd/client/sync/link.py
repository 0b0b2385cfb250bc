"""A session on a socket, for a blocking program: sends, reads, times out, reconnects. :class:`~sbusd.client.sync.bus.Bus` is its face."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from sbusd.client import forks
from sbusd.client.bus_calls import Call
from sbusd.client.bus_socket import RECEIVE_BYTES, Target, is_gone, open_socket, packet_limit, receive_buffer, send_failure
from sbusd.client.errors import (
    AnswerLost,
    Closed,
    Disconnected,
    ForkedError,
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
from sbusd.client.features import Paced
from sbusd.client.inbox import Inbox
from sbusd.client.items import Item, Message
from sbusd.client.operations import Begin, Deadline, Operation, Send, Step
from sbusd.client.outgoing import CLOSING_SECONDS, POSTED_BYTES, POSTED_SECONDS
from sbusd.client.reconnection import Backoff, resubscribe
from sbusd.client.session import Session

T = TypeVar("T")

_SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class SyncLink:
    """The connections of one session, one after another. Not thread-safe."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self.is_open = False
        """Whether :meth:`open` has succeeded; it stays True after the end."""
        self.clock: Callable[[], float] = time.monotonic
        """The clock for how long gathered packets wait."""
        self._reconnect = reconnect
        self._sock: socket.socket | None = None
        self._buffer = receive_buffer()
        self._backoff = Backoff(time.monotonic())
        self._resuming: list[Call] = []
        self._make_failure: Callable[[], SbusError] | None = None
        self._gathering = 0
        self._gathered_since = 0.0

    def open(self) -> None:
        """Make the first connection, unless that has been done. Raises NoBus."""
        if not self.is_open:
            self._sock = open_socket(self.target, self.timeout)
            self.session.outgoing.packet_limit = packet_limit(self._sock)
            self.is_open = True
            forks.watch(self)

    def fileno(self) -> int:
        """Return the socket's descriptor. Raises Closed, or Disconnected while there is none."""
        if self._sock is None:
            raise self._failure() if self._make_failure else Disconnected(self.target.text)
        return self._sock.fileno()

    def forked(self) -> None:
        """Give up the parent's connection: the next call connects again, or raises ForkedError."""
        self._drop_socket()
        if self._make_failure is None:
            make_error = partial(ForkedError, self.target.text)
            self.session.forked(make_error)
            if self._reconnect:
                self._backoff.lost(time.monotonic())
            else:
                self._make_failure = make_error

    def close(self) -> None:
        """Send gathered packets, if there is room for them in time, and close the connection. Harmless when already closed."""
        try:
            if self.session.outgoing.posted_bytes and self._sock is not None:
                with contextlib.suppress(SbusError):
                    self._send_all(Deadline("closing", CLOSING_SECONDS if self.timeout is None else self.timeout))
        finally:
            self._end()

    def _end(self) -> None:
        """Close the connection at once."""
        self._drop_socket()
        self._make_failure = lambda: Closed("the bus")
        self.session.disconnected(self._make_failure)

    # For the face

    def send(self, packet: bytes) -> None:
        """Send *packet* after all packets before it, or gather it. On TimedOut, and any other error, it was not sent."""
        if not self.send_now(packet):
            self.send_later(packet)

    def send_now(self, packet: bytes) -> bool:
        """Do as :meth:`send`, unless the packet has to wait for room or for others; return whether it was sent or gathered."""
        session = self.session
        if self._gathering and session.outgoing.takes_batches is not False:
            self._gather(packet)
            return True
        pacing = session.pacing
        if self._sock is not None and not session.outgoing and pacing.is_on is (pacing.always or isinstance(packet, Paced)):
            try:
                self._sock.send(packet, _SEND_FLAGS)
            except OSError:
                pass
            else:
                session.is_dirty = True
                return True
        return False

    def send_later(self, packet: bytes) -> None:
        """Send *packet* when there is room, or a new connection. On TimedOut, and any other error, it was not sent."""
        deadline = Deadline("publishing", self.timeout)
        self._send_all(deadline)
        # Asked each time: a new connection is not paced.
        while self.session.pacing.prepare(packet) or not self._try_send(packet):
            self._wait_writable(deadline)
            self._send_all(deadline)
        self.session.is_dirty = True

    def begin_gathering(self) -> None:
        """Gather the packets that are sent from now on. Raises Disconnected, Closed."""
        if self._make_failure is not None:
            raise self._failure()
        if not self._gathering:
            self.session.ask_for_batches()
            self.push()
        self._gathering += 1

    def end_gathering(self) -> None:
        """Send the gathered packets, and wait for room if necessary; not inside another gathering. Raises what :meth:`flush` raises."""
        self._gathering -= 1
        if not self._gathering and self.session.outgoing:
            self.flush()

    def flush(self) -> None:
        """Send all packets that wait.

        Raises:
            TimedOut: there was no room in time; the rest still waits.
            Disconnected: there is no connection.
        """
        self._send_all(Deadline("flushing", self.timeout))

    def run(self, operation: Operation[T]) -> T:
        """Perform the steps of *operation*, and return its result."""
        try:
            step = next(operation)
            while True:
                try:
                    self._perform(step)
                except BaseException as error:  # also Ctrl-C: the operation undoes what it has begun
                    step = operation.throw(error)
                else:
                    step = next(operation)
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
        """Wait for the next item of *inbox*, and return it with the items after it that are already here."""
        if limit < 1:
            raise ValueError(f"invalid limit {limit}: must be at least 1")
        first = self.receive(inbox, timeout)
        return [first, *inbox.take_many(limit - 1)]

    def iterate(self, inbox: Inbox) -> Iterator[Item]:
        """Yield the items of :meth:`receive` until the end; faster, since most packets can be yielded without queueing."""
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
                    pass  # receive() gets the same error, and handles it
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
        """Send the packets that can be sent without waiting; the next call sends the rest."""
        if self._sock is not None:
            self._flush()

    def _gather(self, packet: bytes) -> None:
        """Keep *packet* until a batch is full, or enough time has passed since its first packet."""
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

    def _perform(self, step: Step) -> None:
        """Perform one step of an operation."""
        if isinstance(step, Begin):
            # Nothing is added before the packets of the last call have been sent, so that calls which time out cannot pile up.
            self._send_all(step.deadline)
            self._await(step.begin(), step.deadline)
        elif isinstance(step, Send):
            self.send(step.packet)
        else:
            while not any(request.is_done for request in step.requests):
                self._step(step.deadline)

    # Moving packets

    def _step(self, deadline: Deadline) -> None:
        """Receive one packet, and send packets that wait. Returns also when the connection has ended."""
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
        """Receive one packet, or the end of the connection; return False if there is neither yet."""
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
            # The kernel reports a reset once, before the packets that were sent before it; one of them may have the reason.
            return self._read(flags)
        self._accept(size)
        return True

    def _accept(self, size: int, taker: Inbox | None = None) -> Message | None:
        """Handle a packet of *size* bytes, or the end of the connection; return a message that is for *taker* alone."""
        if 0 < size < RECEIVE_BYTES:
            try:
                return self.session.receive(bytes(self._buffer[:size]), taker)
            except ProtocolError as error:
                self._hang_up(error.words)
        else:
            self._hang_up(f"the bus sent a packet longer than {RECEIVE_BYTES - 1} bytes" if size else None)
        return None

    def _read_to_end(self) -> None:
        """Receive the packets that the bus sent before it closed: at most a socket's buffer, so full queues accept them too."""
        while self._sock is not None:
            if not self._read(socket.MSG_DONTWAIT):
                self._hang_up()

    def _flush(self) -> bool:
        """Send the session's packets; return whether all were sent. False also when the connection has ended."""
        outgoing = self.session.outgoing
        if outgoing.takes_batches is None and not self.session.stalled:
            self._read(socket.MSG_DONTWAIT)  # the response may have arrived
        while outgoing:
            try:
                if not self._try_send(outgoing.head()):
                    return False
            except (OSError, PayloadTooLarge) as error:
                # No call waits for this packet to raise the error, and later packets must not overtake it.
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

    def _send_all(self, deadline: Deadline) -> None:
        """Send the session's packets, and wait for room or for a new connection if necessary."""
        self._open_again(deadline)
        while not self._flush():
            self._wait_writable(deadline)
            self._open_again(deadline)

    def _wait_writable(self, deadline: Deadline) -> None:
        """Wait for room, and read meanwhile unless a subscription is full: the bus may stop reading from a client that does not read."""
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

    # Disconnecting and reconnecting

    def _failure(self) -> SbusError:
        """Return the error that every call raises from now on."""
        return self._make_failure() if self._make_failure else Disconnected(self.target.text)

    def _drop_socket(self) -> None:
        """Close the socket."""
        sock, self._sock = self._sock, None
        self._resuming = []
        if sock is not None:
            sock.close()

    def _hang_up(self, fault: str | None = None) -> None:
        """Close a connection that the bus has closed, or that *fault* has made useless."""
        if self._sock is None:
            return
        make_error = disconnection(self.target.text, self.session.last_refusal, fault)
        self._drop_socket()
        self.session.disconnected(make_error, is_final=not self._reconnect)
        if self._reconnect:
            self._backoff.lost(time.monotonic())
        else:
            self._make_failure = make_error

    def _open_again(self, deadline: Deadline) -> None:
        """Ensure that there is a connection with all subscriptions. Raises the error that prevents it."""
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
                    # The bus accepted it before and refuses it now; trying again would not change that.
                    self._end()
                    self._make_failure = rejection(self.target.text, call.error)
                elif isinstance(call.error, AnswerLost):
                    self._hang_up("the bus discarded responses while this client subscribed again")
        if self._make_failure is not None:
            raise self._failure()

    def _connect_again(self, deadline: Deadline) -> None:
        """Connect, with as many attempts as it takes, and begin to subscribe again."""
        backoff = self._backoff
        while self._sock is None:
            self._sleep_until(backoff.due, deadline)
            backoff.attempt(time.monotonic())
            self.session.counters.reconnect_attempts += 1
            try:
                self._sock = open_socket(self.target, deadline.remaining())
                self.session.outgoing.packet_limit = packet_limit(self._sock)
            except NoBus:
                deadline.check()
        now = time.monotonic()
        backoff.connected(now)
        # Before any packet of the new connection is read, so that Reconnected precedes them in every subscription.
        self.session.reconnected(backoff.attempts, now - backoff.since)
        self._resuming = resubscribe(self.session)

    def _sleep_until(self, due: float, deadline: Deadline) -> None:
        """Wait until *due*. Raises TimedOut if the deadline comes first."""
        pause = due - time.monotonic()
        remaining = deadline.remaining()
        if remaining is not None and remaining < pause:
            time.sleep(remaining)
            raise deadline.expired()
        if pause > 0:
            time.sleep(pause)
