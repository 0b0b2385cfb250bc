"""The connection of a blocking program, shared by its threads: sends and receives packets, waits, disconnects and connects again.

Every method but :meth:`Connection.locked` is called in :meth:`~sbus.sync.threads.Threads.run`, which it leaves while it waits.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from sbus.bus_calls import Call
from sbus.bus_socket import RECEIVE_BYTES, Target, is_gone, open_socket, packet_limit, receive_buffer, send_failure
from sbus.bus_unit import WAIT_SECONDS, UnitCheck, unit_of
from sbus.errors import (
    AnswerLost,
    Closed,
    Disconnected,
    InboxFull,
    NoBus,
    PayloadTooLarge,
    ProtocolError,
    RemoteRefusal,
    SbusError,
    TimedOut,
    Unsupported,
    disconnection,
    rejection,
)
from sbus.inbox import Inbox
from sbus.items import Message
from sbus.operations import Deadline, until_check
from sbus.reconnection import ReconnectAttempts
from sbus.resubscription import resubscribe
from sbus.session import Session
from sbus.sync.threads import Threads

T = TypeVar("T")

SEND_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL

_FOREVER = Deadline("receiving", None)

_STALLED_SECONDS = 30.0
"""Time that a thread waits for another one to receive from a full subscription."""


class Connection:
    """The connections of one session, one after another. :class:`~sbus.sync.link.SyncLink` uses it."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool, background: bool) -> None:
        self.target = target
        self.session = session
        self.timeout = timeout
        self.threads = Threads(self._finish)
        """Those that use this link."""
        self._reconnect = reconnect
        self._sock: socket.socket | None = None
        self._buffer = receive_buffer()
        self._backoff = ReconnectAttempts(time.monotonic())
        self._resuming: list[Call] = []
        self._make_failure: Callable[[], SbusError] | None = None
        self._reads_in_background = background
        self._background: threading.Thread | None = None
        self._log = session.notice_log.connection
        unit = unit_of(target.text)
        self._unit = None if unit is None else UnitCheck(unit)

    def entered(self) -> AbstractContextManager[object]:
        """Keep other threads from the link."""
        return self.threads.lock

    def locked(self, work: Callable[[], T]) -> T:
        """Return the result of *work*, which uses the state. Raises what :meth:`Threads.run` raises."""
        try:
            return self.threads.run(work)
        finally:
            if self.threads.late or self._log.pending:
                self._finish()

    def _finish(self) -> None:
        """Do what is late, and write the records about the connection. Call it without the lock: a handler of them may wait."""
        if self.threads.late and not self.threads.is_held:
            with contextlib.suppress(SbusError, OSError, RuntimeError):  # what has not been sent waits for the next call
                self.threads.run(self._do_late)
        if self._log.pending and not self.threads.is_held:
            self._log.write()

    def _do_late(self) -> None:
        """Do what signal handlers have left to the thread that they interrupted, and send what follows from it."""
        late = self.threads.late
        while late:
            with contextlib.suppress(SbusError):
                late.popleft()()
        if self._sock is not None:
            self._send_all(Deadline("publishing", self.timeout))

    def _flush(self) -> bool:
        """Send the session's packets; return whether all were sent. False also when the connection has ended."""
        outgoing = self.session.outgoing
        if outgoing.takes_batches is None and not self.session.stalled and not self.threads.has_reader:
            self._read()  # the response may have arrived
        while outgoing:
            try:
                if not self._try_send():
                    return False
            except (OSError, PayloadTooLarge) as error:
                # No call waits for this packet to raise the error, and later packets must not overtake it.
                self._hang_up(f"cannot send: {error}")
                return False
        return self._sock is not None

    def _try_send(self, packet: bytes | None = None) -> bool:
        """Send *packet*, or the session's next one; return False if the socket is full, or the connection has ended."""
        outgoing = self.session.outgoing
        if self._sock is None:
            return False
        try:
            if packet is None:
                outgoing.send(self._sock.send, SEND_FLAGS)
            else:
                self._sock.send(packet, SEND_FLAGS)
        except BlockingIOError:
            return False
        except OSError as error:
            if not is_gone(error):
                raise send_failure(self._sock, outgoing.head() if packet is None else packet, error) from error
            if not self.threads.has_reader:  # otherwise the reader finds the end
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
        if self.threads.has_reader or self.session.stalled:
            self._wait_for_room(deadline)
        elif self._poll(select.POLLOUT | select.POLLIN, deadline) & select.POLLIN and not self.session.stalled:
            self._read()

    def _wait_for_room(self, deadline: Deadline) -> None:
        """Wait for room for a short time, while another thread reads, or a subscription is full. Raises TimedOut."""
        deadline.check()
        sock, threads = self._sock, self.threads
        if sock is None:
            return
        events = threads.poll_room(sock)
        if events and not events & select.POLLOUT and threads.has_reader and self._sock is sock:
            threads.wait(lambda: self._sock is not sock, deadline)  # the reader finds the end of the connection

    def _step(self, deadline: Deadline, is_done: Callable[[], bool]) -> None:
        """Receive one packet, or wait until *is_done* while another thread does; send packets that wait. Returns also at the end."""
        session, threads, sock = self.session, self.threads, self._sock
        if session.stalled:
            self._wait_for_receiver(deadline, is_done)
            return
        if session.outgoing and not self._flush() and self._sock is None:
            return
        if threads.has_reader:
            if session.outgoing:
                self._wait_for_room(deadline)
            else:
                threads.wait(lambda: self._sock is not sock or is_done(), deadline)
            return
        try:
            events = self._poll(select.POLLIN | (select.POLLOUT if session.outgoing else 0), deadline)
        except TimedOut:
            if not (is_done() or self._read_ahead()):  # a signal handler may have taken all the time
                raise
            return
        if events & ~select.POLLOUT and not session.stalled:
            self._read()

    def _wait_for_receiver(self, deadline: Deadline, is_done: Callable[[], bool]) -> None:
        """Wait until another thread has made room in a full subscription. Raises InboxFull if only this thread can, TimedOut."""
        session, full = self.session, next(iter(self.session.stalled))
        error = InboxFull(tuple(full.patterns), len(full))
        if full.receiver in (0, threading.get_ident()):
            raise error
        stall = Deadline("receiving", _STALLED_SECONDS)
        try:
            self.threads.wait(lambda: not session.stalled or is_done(), deadline.sooner(stall))
        except TimedOut:
            deadline.check()
            raise error from None

    def _receive_single(self, inbox: Inbox) -> Message | None:
        """Wait for a packet, and return it if it is a message for *inbox* alone; None if something else has to be done."""
        threads = self.threads
        with threads.lock:  # as Threads.run() does, without calls
            if threads.is_inside:
                return None
            threads.is_inside = True
            try:
                return self._receive_next(inbox)
            finally:
                try:
                    if threads.waiting:
                        threads.hand_over()
                finally:
                    threads.is_inside = False

    def _receive_next(self, inbox: Inbox) -> Message | None:
        """Do as :meth:`_receive_single`."""
        session, threads = self.session, self.threads
        while True:
            sock, outgoing = self._sock, session.outgoing
            if sock is None or threads.reader or inbox.items or inbox.ready or inbox.lost:
                return None
            if inbox.is_drained or not inbox.patterns:  # as has_ended; perhaps another call has read the response that ended it
                return None
            if not outgoing.is_empty or session.stalled or session.refusals or self._resuming:
                return None
            try:
                size = sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)  # mostly there is one, and to wait costs more
                return self._accept(size, inbox)
            except BlockingIOError:
                self._poll(select.POLLIN, _FOREVER)
            except OSError:
                return None  # receive() gets the same error, and handles it
            except BaseException:  # as in _read()
                session.lost(0)
                raise

    def _read_ahead(self) -> bool:
        """Receive one packet if nothing else is to be done; return whether there was one."""
        session = self.session
        return session.outgoing.is_empty and not (self.threads.reader or session.stalled) and self._read()

    def _read(self) -> bool:
        """Receive one packet, or the end of the connection; return False if there is neither yet. No other thread may read."""
        sock = self._sock
        if sock is None:
            return True
        try:
            size = sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            self._accept(size)
        except BlockingIOError:
            return False
        except OSError as error:
            if not is_gone(error):
                self._hang_up(f"cannot receive: {error.strerror}")
                return True
            # The kernel reports a reset once, before the packets that were sent before it; one of them may have the reason.
            return self._read()
        except BaseException:
            # An exception of a signal handler: the packet may be lost, or only a part of what follows from it done.
            self.session.lost(0)
            raise
        if self.threads.waiting:
            self.threads.notify()
        return True

    def _accept(self, size: int, taker: Inbox | None = None) -> Message | None:
        """Handle a packet of *size* bytes, or the end of the connection; return a message that is for *taker* alone."""
        if 0 < size < RECEIVE_BYTES:
            try:
                return self.session.receive(self._buffer[:size].tobytes(), taker)
            except ProtocolError as error:
                self._hang_up(error.words)
        else:
            self._hang_up(f"the bus sent a packet longer than {RECEIVE_BYTES - 1} bytes" if size else None)
        return None

    def _read_to_end(self) -> None:
        """Receive the packets that the bus sent before it closed: at most a socket's buffer, so full queues accept them too."""
        while self._sock is not None:
            if not self._read():
                self._hang_up()

    def _poll(self, events: int, deadline: Deadline) -> int:
        """Wait for *events* as the reader, and return those that came. Raises TimedOut."""
        sock = self._sock
        if sock is None:
            return 0
        poller = select.poll()
        poller.register(sock, events)
        ready = self.threads.unlocked(partial(poller.poll, deadline.milliseconds))
        if not ready:
            deadline.check()
            return 0
        return ready[0][1] if self._sock is sock else 0

    def _start_background(self) -> None:
        """Start the thread that reads in the background, if that is wanted; a child process has to start one of its own."""
        if self._reads_in_background and self._background is None:
            self._background = threading.Thread(target=self._run_in_background, name="sbus-reader", daemon=True)
            self._background.start()

    def _run_in_background(self) -> None:
        """Read in the background, until the bus is closed."""
        with contextlib.suppress(SbusError):  # the next call of another thread raises it
            self.locked(self._read_in_background)

    def _read_in_background(self) -> None:
        """Read, and connect again, until the bus is closed or the connection has ended for good."""
        session, threads = self.session, self.threads
        while self._make_failure is None:
            if self._log.pending and not threads.has_reader:
                threads.unlocked(self._log.write)
            elif session.stalled:
                threads.wait(lambda: not session.stalled or self._make_failure is not None, _FOREVER)
            elif self._sock is None or self._resuming:
                self._open_again(_FOREVER)
            else:
                self._step(_FOREVER, lambda: self._make_failure is not None)

    def _await(self, calls: Sequence[Call], deadline: Deadline) -> None:
        """Wait until each of *calls* is done."""
        checks = iter(WAIT_SECONDS) if self._unit is not None else iter(())
        limit = until_check(checks, deadline)
        for call in calls:
            while not call.is_done:
                try:
                    self._step(limit, lambda call=call: call.is_done)  # type: ignore[misc]
                except TimedOut:
                    if limit is deadline:
                        raise
                    self._check_unit()
                    limit = until_check(checks, deadline)

    def _check_unit(self) -> None:
        """Close the connection if the service of the bus fails to start, so that no caller waits for it."""
        if self._unit is not None and (reason := self.threads.outside(self._unit.failure)):
            self._hang_up(reason)

    def _failure(self) -> SbusError:
        """Return the error that every call raises from now on."""
        return self._make_failure() if self._make_failure else Disconnected(self.target.text)

    def _end(self) -> None:
        """Close the connection at once."""
        self._drop_socket()
        self._make_failure = lambda: Closed("the bus")
        self.session.disconnected(self._make_failure)
        self.threads.notify()

    def _drop_socket(self) -> None:
        """Close the socket, or if another thread uses it, wake that thread, which closes it."""
        sock, self._sock = self._sock, None
        self._resuming = []
        if sock is not None:
            self.threads.close(sock)

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
        self.threads.notify()

    def _open_again(self, deadline: Deadline) -> None:
        """Ensure that there is a connection with all subscriptions. Raises the error that prevents it."""
        if self._sock is not None and not self._resuming:
            return
        try:
            self._resume_all(deadline)
        except TimedOut as error:
            raise error.without_connection(self.target.text) from None

    def _resume_all(self, deadline: Deadline) -> None:
        """Connect, and subscribe to everything."""
        while self._sock is None or self._resuming:
            if self._make_failure is not None:
                raise self._failure()
            if self._sock is None:
                if self.threads.has_reader:
                    self.threads.wait(lambda: self._sock is not None or self._make_failure is not None, deadline)
                    continue
                self._connect_again(deadline)
            calls = self._resuming
            self._await(calls, deadline)
            if self._resuming is not calls:
                continue
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
        if self._log.pending:
            self.threads.unlocked(self._log.write)  # it may take long to connect
        while True:
            self._sleep_until(backoff.due, deadline)
            backoff.attempt(time.monotonic())
            self.session.counters.reconnect_attempts += 1
            try:
                sock = self.threads.unlocked(partial(self._opened, deadline.remaining()))
            except NoBus:
                deadline.check()
                continue
            if self._make_failure is not None:  # closed meanwhile
                sock.close()
                raise self._failure()
            break
        self._sock = sock
        try:
            self._resume(sock)
        except BaseException:  # an exception of a signal handler: the bus does not have all patterns
            self._hang_up("the program was interrupted while it subscribed again")
            raise
        self._start_background()

    def _resume(self, sock: socket.socket) -> None:
        """Begin to use the new connection *sock*, and to subscribe again."""
        self.session.outgoing.packet_limit = packet_limit(sock)
        now = time.monotonic()
        self._backoff.connected(now)
        # Before any packet of the new connection is read, so that Reconnected precedes them in every subscription.
        self.session.reconnected(self._backoff.attempts, now - self._backoff.since)
        self._resuming = resubscribe(self.session)
        self.threads.notify()

    def _opened(self, timeout: float | None) -> socket.socket:
        """Return a new socket. Raises NoBus."""
        sock = open_socket(self.target, timeout)
        sock.setblocking(self.target.is_connected)  # gevent ignores MSG_DONTWAIT; flags of a given socket are shared with others
        return sock

    def _sleep_until(self, due: float, deadline: Deadline) -> None:
        """Wait until *due*. Raises TimedOut if the deadline comes first, and Closed if the bus is closed meanwhile."""
        pause = due - time.monotonic()
        remaining = deadline.remaining()
        if remaining is not None and remaining < pause:
            self.threads.unlocked(partial(time.sleep, remaining))
            raise deadline.expired()
        if pause > 0:
            self.threads.unlocked(partial(time.sleep, pause))
        if self._make_failure is not None:
            raise self._failure()
