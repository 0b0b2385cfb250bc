"""What a blocking program does with its session: publishes, gathers, receives, calls. :class:`~sbus.sync.bus.Bus` uses it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import TypeVar

from sbus import forks
from sbus.arguments import check_count
from sbus.bus_socket import State, Target, packet_limit
from sbus.bus_unit import explained
from sbus.errors import Closed, ForkedError, NoBus, SbusError
from sbus.features import Paced
from sbus.inbox import Inbox
from sbus.items import Item, Message
from sbus.late_modules import import_late_modules
from sbus.operations import Begin, Deadline, Operation, Send, Step
from sbus.outgoing import CLOSING_SECONDS, POSTED_BYTES, POSTED_SECONDS
from sbus.session import Session
from sbus.sync.connection import SEND_FLAGS, Connection
from sbus.sync.threads import refusal

T = TypeVar("T")


_MOST_LATE = 1_000
"""Packets and changes that signal handlers may leave to the call that they have interrupted."""


class SyncLink(Connection):
    """The connections of one session. Public methods may be called by several threads at the same time; the others need the lock."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool, background: bool = False) -> None:
        super().__init__(target, session, timeout, reconnect=reconnect, background=background)
        self.is_open = False
        """Whether :meth:`open` has succeeded; it stays True after the end."""
        self.clock: Callable[[], float] = time.monotonic
        """The clock for how long gathered packets wait."""
        self._gathering: dict[int, int] = {}
        self._gathered_since = 0.0

    def open(self) -> None:
        """Make the first connection, unless that has been done. Raises NoBus."""
        if not self.is_open:
            try:
                self._sock = self._opened(self.timeout)
            except NoBus as error:
                raise explained(error, self._unit) from None
            self.session.outgoing.packet_limit = packet_limit(self._sock)
            self.is_open = True
            forks.watch(self)
            if self._reconnect or self._reads_in_background:
                import_late_modules("sync")
            self.locked(self._begin)

    def fileno(self) -> int:
        """Return the socket's descriptor. Raises Closed, or Disconnected while there is none."""
        sock = self._sock
        if sock is None:
            raise self._failure()
        return sock.fileno()

    def forked(self) -> None:
        """Give up the parent's connection: the next call connects again, or raises ForkedError."""
        self.threads.forked()
        self._gathering = {thread: count for thread, count in self._gathering.items() if thread == get_ident()}
        self._background = None
        self._drop_socket()
        if self._make_failure is None:
            make_error = partial(ForkedError, self.target.text)
            self.session.forked(make_error)
            if self._reconnect:
                self._backoff.lost(time.monotonic())
            else:
                self._make_failure = make_error

    def close(self) -> None:
        """Send gathered packets, if there is room for them in time, and close the connection. Harmless when already closed.

        A signal handler that has interrupted a call of this link closes it at the end of that call.
        """
        self.change(self._close)
        self.session.refusals.report()

    def change(self, work: Callable[[], object]) -> None:
        """Call *work*, which changes the state, and send what follows from it without waiting; the next call sends the rest.

        In a signal handler that has interrupted a call of this link, do it at the end of that call.
        """
        if self.threads.is_held:
            self.threads.late.append(work)
            return
        if self.threads.late:
            self._finish()
        self.locked(partial(self._change, work))

    def send(self, packet: bytes) -> None:
        """Send *packet* after all packets before it, or gather it. On TimedOut, and any other error, it was not sent."""
        if not self.send_now(packet):
            self.send_later(packet)

    def send_now(self, packet: bytes) -> bool:
        """Do as :meth:`send`, unless the packet has to wait for room or for others; return whether it was sent or gathered."""
        session, threads = self.session, self.threads
        try:  # without Threads.run(), and faster than by with: this is the most frequent use, and sends without changing anything first
            threads.acquire()
            outgoing = session.outgoing
            if threads.is_inside or threads.late:
                return False
            if self._gathering and get_ident() in self._gathering and outgoing.takes_batches is not False:
                threads.is_inside = True
                try:
                    self._gather(packet)
                finally:
                    try:
                        if threads.waiting:
                            threads.hand_over()
                    finally:
                        threads.is_inside = False
            else:
                sock, pacing = self._sock, session.pacing
                if sock is None or not outgoing.is_empty or pacing.is_on is not (pacing.always or isinstance(packet, Paced)):
                    return False
                sock.send(packet, SEND_FLAGS)
                session.is_dirty = True
        except OSError:
            return False  # send_later() gets the same error
        finally:
            try:  # noqa: SIM105 - a context manager would take longer than the lock
                threads.release()
            except RuntimeError:  # an exception of a signal handler came before this thread had the lock
                pass
        if threads.late:
            self._finish()
        return True

    def send_later(self, packet: bytes) -> None:
        """Send *packet* when there is room, or a new connection. On TimedOut, and any other error, it was not sent.

        In a signal handler, it is left to the interrupted call if that has the lock, or has to connect again.
        """
        if self.threads.is_held:
            self._check_post(packet)
            self.threads.late.append(partial(self._post, packet))
        else:
            if self.threads.late:  # of another handler, which came just before the interrupted call had released the lock
                self._finish()
            self.locked(partial(self._send_later, packet))

    def begin_gathering(self) -> None:
        """Gather the packets that this thread sends from now on. Raises Disconnected, Closed."""
        self.locked(self._begin_gathering)

    def end_gathering(self) -> None:
        """Send the gathered packets, and wait for room if necessary; not inside another gathering. Raises what :meth:`flush` raises."""
        self.locked(self._end_gathering)

    def flush(self) -> None:
        """Send all packets that wait.

        Raises:
            TimedOut: there was no room in time; the rest still waits.
            Disconnected: there is no connection.
        """
        self.locked(partial(self._send_all, Deadline("flushing", self.timeout)))

    def drain(self, inbox: Inbox, keep: bytes = b"") -> None:
        """Begin to end the subscription of *inbox*, but for patterns that begin with *keep*. For signal handlers as :meth:`change`."""
        self.change(partial(self.session.drain, inbox, keep))

    @property
    def state(self) -> State:
        """The state of the connection."""
        if self._make_failure is not None:
            return "closed"
        return "connected" if self._sock is not None else "reconnecting"

    def push(self) -> None:
        """Send the packets that can be sent without waiting; the next call sends the rest."""
        self.locked(self._push)

    def run(self, operation: Operation[T]) -> T:
        """Perform the steps of *operation*, and return its result. Raises RuntimeError in a signal handler that it would wait for."""
        if self.threads.is_under_handler:
            raise refusal()
        return self.locked(partial(self._run, operation))

    def receive(self, inbox: Inbox, timeout: float | None) -> Item:
        """Wait for the next item of *inbox*."""
        threads, wait = self.threads, partial(self._receive, inbox, Deadline("receiving", timeout))
        try:  # as locked() does, without a call
            while (item := threads.run(wait)) is None:
                self.session.refusals.report()
            return item
        finally:
            if threads.late or self._log.pending:
                self._finish()

    def receive_many(self, inbox: Inbox, limit: int, timeout: float | None) -> list[Item]:
        """Wait for the next item of *inbox*, and return it with the items after it that are already here."""
        check_count(limit, "limit", 1)
        wait = partial(self._receive_many, inbox, limit, Deadline("receiving", timeout))
        while not (items := self.locked(wait)):
            self.session.refusals.report()
        return items

    def messages(self, inbox: Inbox, on_gap: Callable[[Item], object]) -> Iterator[Message]:
        """Yield the messages of :meth:`iterate`, and call *on_gap* with the other items at their places."""
        return self.iterate(inbox, on_gap)  # type: ignore[return-value]  # then it yields only messages

    def iterate(self, inbox: Inbox, on_gap: Callable[[Item], object] | None = None) -> Iterator[Item]:
        """Yield the items of :meth:`receive` until the end; faster, since most packets can be yielded without queueing.

        With *on_gap*, yield only messages.
        """
        refusals, ready = self.session.refusals, inbox.ready
        threads = self.threads
        self.locked(partial(inbox.received_by, get_ident()))
        while True:
            # Without the lock: one thread takes from the left, unless the subscription is shared.
            while ready and not refusals and not inbox.is_shared:
                yield ready.popleft()
            message = self._receive_single(inbox)
            if threads.late:
                self._finish()
            if message is not None:
                yield message
                continue
            try:
                item = self.receive(inbox, None)
            except Closed:
                return
            if on_gap is None or isinstance(item, Message):
                yield item
            else:
                on_gap(item)

    def _begin(self) -> None:
        """Note the first connection, and use it."""
        self._log.connected(self.target.text)
        self._start_background()

    def _change(self, work: Callable[[], object]) -> None:
        work()
        self._push()

    def _close(self) -> None:
        """Send gathered packets, and close the connection."""
        try:
            self._send_last()
        finally:
            self._end()

    def _send_last(self) -> None:
        """Send gathered packets, if there is room for them in time."""
        if self.session.outgoing.posted_bytes and self._sock is not None:
            with contextlib.suppress(SbusError):
                self._send_all(Deadline("closing", CLOSING_SECONDS if self.timeout is None else self.timeout))

    def _begin_gathering(self) -> None:
        if self._make_failure is not None:
            raise self._failure()
        if not self._gathering:
            self.session.ask_for_batches()
            self._push()
        thread = get_ident()
        self._gathering[thread] = self._gathering.get(thread, 0) + 1

    def _end_gathering(self) -> None:
        thread = get_ident()
        if count := self._gathering.pop(thread) - 1:
            self._gathering[thread] = count
        elif self.session.outgoing:
            self._send_all(Deadline("flushing", self.timeout))

    def _gathers(self) -> bool:
        """Return whether this thread gathers, and the bus may take batches."""
        return get_ident() in self._gathering and self.session.outgoing.takes_batches is not False

    def _send_later(self, packet: bytes) -> None:
        if self._gathers():
            self._gather(packet)
            return
        if self.threads.reader == get_ident() and (self._sock is None or self._resuming):
            self._check_post(packet)
            self._post(packet)
            return
        deadline = Deadline("publishing", self.timeout)
        self._send_all(deadline)
        while True:
            # Asked each time: a new connection is not paced, and another thread may publish without pacing.
            if self.session.pacing.prepare(packet):
                self._send_all(deadline)
            elif self._try_send(packet):
                break
            else:
                self._wait_writable(deadline)
                self._send_all(deadline)
        self.session.is_dirty = True

    def _check_post(self, packet: bytes) -> None:
        """Raise an error if :meth:`_post` is not possible: a signal handler may queue some packets, but not without limit."""
        if self._make_failure is not None:
            raise self._failure()
        if len(self.threads.late) >= _MOST_LATE or self.session.outgoing.posted_bytes >= POSTED_BYTES:
            raise refusal()
        self.session.outgoing.fitting(packet)

    def _post(self, packet: bytes) -> None:
        """Queue *packet* behind all others, for a signal handler."""
        if self._make_failure is not None:  # in the meantime
            self.session.outgoing.unsent += 1
            return
        self.session.pacing.prepare(packet)
        self.session.outgoing.post(packet)
        self.session.is_dirty = True

    def _push(self) -> None:
        if self._sock is not None:
            self._flush()

    def _gather(self, packet: bytes) -> None:
        """Keep *packet* until a batch is full, or enough time has passed since its first packet."""
        outgoing = self.session.outgoing
        if len(packet) > outgoing.packet_limit or outgoing.posted_bytes >= POSTED_BYTES or self._sock is None or self._resuming:
            outgoing.fitting(packet)
            self._send_all(Deadline("publishing", self.timeout))
        pacing = self.session.pacing
        if pacing.is_on is not (pacing.always or isinstance(packet, Paced)):
            pacing.prepare(packet)
        now = self.clock()
        if not outgoing.posted_bytes:
            self._gathered_since = now
        outgoing.post(packet)
        self.session.is_dirty = True
        if outgoing.posted_bytes >= POSTED_BYTES or now - self._gathered_since >= POSTED_SECONDS:
            self._gathered_since = now
            self._flush()

    def _receive(self, inbox: Inbox, deadline: Deadline) -> Item | None:
        """Wait for the next item of *inbox*; return None if refusals are to be reported first."""
        refusals = self.session.refusals
        thread = get_ident()
        if inbox.receiver != thread:
            inbox.received_by(thread)
        while not refusals:
            item = inbox.take()
            if item is not None:
                return item
            if inbox.has_ended:
                raise Closed("the subscription")
            if self._sock is None or self._resuming:
                self._open_again(deadline)
            elif not self._read_ahead():
                self._step(deadline, lambda: not inbox.is_empty or inbox.has_ended or bool(refusals))
        return None

    def _receive_many(self, inbox: Inbox, limit: int, deadline: Deadline) -> list[Item]:
        """Wait for the next items of *inbox*; return none if refusals are to be reported first."""
        first = self._receive(inbox, deadline)
        return [] if first is None else [first, *inbox.take_many(limit - 1)]

    def _run(self, operation: Operation[T]) -> T:
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
        except BaseException:
            self._push()  # the packets that undo what it has begun
            raise

    def _perform(self, step: Step) -> None:
        """Perform one step of an operation."""
        if isinstance(step, Begin):
            # Nothing is added before the packets of the last call have been sent, so that calls which time out cannot pile up.
            self._send_all(step.deadline)
            self._await(step.begin(), step.deadline)
        elif isinstance(step, Send):
            self._send_later(step.packet)
        else:
            requests = step.requests

            def is_done() -> bool:
                return any(request.is_done for request in requests)

            while not is_done():
                self._step(step.deadline, is_done)
