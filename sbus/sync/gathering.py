"""The link of ``Bus.connect(gather=True)``: publications that closely follow each other leave together.

Rules:

1. A publication that begins less than :data:`TOGETHER_SECONDS` after the end of another one is gathered. Any other one is sent at once,
   after what is gathered.
2. What is gathered is sent when it fills a batch, when a publication comes 1 ms or more after the first of it, before the link waits for
   anything or begins a request, at close and at the end of the program, and otherwise by the flusher, a thread.
3. The flusher looks after 1 ms, and again as long as publications are gathered. Then it waits for the next one, and ends after a while.
   An idle bus has no such thread.
4. The flusher meets the same errors as :meth:`SyncLink.flush`. It leaves them to the next call: a connection that has ended raises its
   reason there, and publications that are never sent are counted in ``Statistics.unsent``.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from functools import partial
from threading import get_ident

from sbus.bus_socket import Target
from sbus.errors import SbusError
from sbus.features import Paced
from sbus.operations import Deadline
from sbus.outgoing import POSTED_SECONDS
from sbus.session import Session
from sbus.sync.connection import SEND_FLAGS
from sbus.sync.link import SyncLink

TOGETHER_SECONDS = 20e-6
"""A publication that begins so soon after another is one of many: several times the time of one, and less than a round trip."""

_IDLE_SECONDS = 1.0
"""Time after which a flusher that has nothing to do ends."""

_RETRY_SECONDS = 0.05
"""Time between two attempts of the flusher if it cannot send, though the connection has not ended for good."""


class GatheringLink(SyncLink):
    """A link that gathers by itself."""

    def __init__(self, target: Target, session: Session, timeout: float | None, *, reconnect: bool, background: bool = False) -> None:
        super().__init__(target, session, timeout, reconnect=reconnect, background=background)
        self._published_at = float("-inf")
        """Time of the end of the last publication."""
        self._flusher: threading.Thread | None = None
        self._is_idle = False
        """Whether the flusher waits for ``_wake``; it then sends nothing."""
        self._wake = threading.Event()
        self._looked_at = 0.0
        """The value of ``_gathered_since`` at the last look of the flusher."""
        _links.add(self)

    def forked(self) -> None:
        """Do as :meth:`SyncLink.forked`: this process sends nothing that the parent has gathered, and has no flusher."""
        self._flusher, self._is_idle, self._wake = None, False, threading.Event()
        super().forked()

    def send_now(self, packet: bytes) -> bool:
        """Do as :meth:`SyncLink.send_now`, and gather the packet if it closely follows another."""
        threads = self.threads
        with threads.lock:  # as Threads.run() does, without calls
            if threads.is_inside or threads.late:
                return False
            threads.is_inside = True
            try:
                is_sent = self._send_or_gather(packet)
                self._published_at = self.clock()
            finally:
                try:
                    if threads.waiting:
                        threads.hand_over()
                finally:
                    threads.is_inside = False
        if threads.late or self._log.pending:
            self._finish()
        return is_sent

    def send_later(self, packet: bytes) -> None:
        """Do as :meth:`SyncLink.send_later`."""
        super().send_later(packet)
        self._published_at = self.clock()

    def flush_at_exit(self) -> None:
        """Send what is gathered, if there is room for it in time: the program ends without closing the bus."""
        self.locked(self._send_last)

    def _send_or_gather(self, packet: bytes) -> bool:
        """Send or gather *packet*; return False if neither can be done without waiting."""
        session, outgoing = self.session, self.session.outgoing
        coalesces = get_ident() in self._gathering
        follows = coalesces or self.clock() - self._published_at < TOGETHER_SECONDS
        if (follows or not outgoing.is_empty) and self._may_gather():
            self._gather(packet)
            self._arm()  # the flusher may be idle while this thread waited for room
            if not follows:
                self._flush()
            return True
        sock, pacing = self._sock, session.pacing
        if sock is None or not outgoing.is_empty or pacing.is_on is not (pacing.always or isinstance(packet, Paced)):
            return False
        try:
            sock.send(packet, SEND_FLAGS)
        except OSError:
            return False  # send_later() gets the same error
        session.is_dirty = True
        return True

    def _may_gather(self) -> bool:
        """Return whether packets may be gathered: the bus may take batches, and there is a flusher."""
        outgoing = self.session.outgoing
        if self._sock is None or self._resuming:
            return False
        if outgoing.takes_batches is False:
            self.session.ask_for_batches()
        # The flusher comes before the packet: a signal handler that raises must not leave a packet that no thread sends.
        return outgoing.takes_batches is not False and self._arm()

    def _arm(self) -> bool:
        """Ensure that the flusher looks in 1 ms; return False if the interpreter is ending, and starts no threads."""
        if self._flusher is None:
            flusher = threading.Thread(target=self._flush_in_background, name="sbus-flusher", daemon=True)
            try:
                flusher.start()
            except RuntimeError:
                return False
            self._flusher = flusher
        elif self._is_idle:
            self._is_idle = False
            self._wake.set()
        return True

    def _end(self) -> None:
        super()._end()
        if self._is_idle:
            self._arm()

    def _flush_in_background(self) -> None:
        """Look as often as necessary, until nothing has been gathered for a while, or the connection has ended for good."""
        wake = self._wake
        pause: float | None = POSTED_SECONDS
        while True:
            if pause is not None:
                time.sleep(pause)
            is_woken = pause is not None or wake.wait(_IDLE_SECONDS)
            wake.clear()
            ends, pause = self.locked(partial(self._look_or_end, is_woken=is_woken))
            if ends:
                return

    def _look_or_end(self, *, is_woken: bool) -> tuple[bool, float | None]:
        """Return whether the flusher ends, and what :meth:`_look` returns."""
        if self._flusher is not threading.current_thread():
            return True, None  # an exception of a signal handler has come before it was known
        if self._make_failure is not None or (self._is_idle and not is_woken):
            self._flusher, self._is_idle = None, False
            return True, None
        pause = self._look()
        self._is_idle = pause is None
        return False, pause

    def _look(self) -> float | None:
        """Send what has waited for 1 ms; return the seconds until the next look, or None if nothing was gathered lately."""
        outgoing = self.session.outgoing
        was_seen, self._looked_at = self._gathered_since == self._looked_at, self._gathered_since
        if not outgoing.posted_bytes:
            return None if was_seen else POSTED_SECONDS
        rest = self._gathered_since + POSTED_SECONDS - self.clock()
        if rest > 0:
            return rest
        try:
            self._send_all(Deadline("flushing", None))
        except SbusError:  # the next call of another thread raises it
            return _RETRY_SECONDS
        return POSTED_SECONDS


_links: weakref.WeakSet[GatheringLink] = weakref.WeakSet()


@atexit.register
def _flush_at_exit() -> None:
    for link in list(_links):
        link.flush_at_exit()
