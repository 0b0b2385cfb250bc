"""Cancelled requests: how a caller withdraws a request, and how a handler learns of it. No I/O. Spec: sbus-rpc(7) §7, "Cancellation".

A request is cancelled by a message of the connection that made it, or by the end of that connection. Attacks that this prevents:

1. *Cancel the call of another user.* A message cancels only requests of its sender, which the bus names.
2. *Exhaust a service.* A message for an unknown request is counted, and nothing is remembered. Its ``uid`` stays usable.
3. *Be run as a request.* The message has expired in 1970, so that a service that does not know ``cancel`` does not run it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sbus.arguments import time_limit
from sbus.protocol.envelope import RELAY_HEAD, Envelope
from sbus.protocol.keys import connection_address
from sbus.protocol.packets import publish_packet

if TYPE_CHECKING:
    from sbus.rpc.pending_requests import PendingRequest
    from sbus.session import Session

WATCH_SECONDS = 0.1
"""Time after which the caller of a request that still runs is watched: a call that is shorter costs no subscription. People notice no delay
of this length."""

PAST = 1
"""``exp`` and ``now`` of messages that are not to be run: they expired in 1970."""

_LOCK = threading.Lock()
"""For the first wait of a :class:`Cancellation`, which is rare: with a lock of its own, each request would cost more."""


class Cancellation:
    """Whether the caller has cancelled a request, or has disconnected: true from then on. ``request.cancelled`` is one.

    Any thread may test it and wait for it. A ``Bus`` reads what has arrived when the thread that serves tests it or waits for it, and
    with *background* too only then. An ``AsyncBus`` sets it while its loop runs, and cancels the task of a handler that is a coroutine.
    """

    __slots__ = ("_event", "_is_set", "is_old", "look", "on_set")

    def __init__(self) -> None:
        self.is_old = False
        """Whether the request was there already when the callers were looked at last."""
        self.look: Callable[[float], bool] | None = None
        """Reads what arrives within some seconds; returns False if this thread cannot."""
        self.on_set: Callable[[], object] | None = None
        """Called once, when it becomes true."""
        self._is_set = False
        self._event: threading.Event | None = None

    def __repr__(self) -> str:
        return f"<Cancellation {'set' if self._is_set else 'not set'}>"

    def __bool__(self) -> bool:
        """Return whether the request is cancelled."""
        return self.is_set()

    def is_set(self) -> bool:
        """Return whether the request is cancelled."""
        if not self._is_set and self.look is not None:
            self.look(0.0)
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the request is cancelled, for at most *timeout* seconds, None for no limit; return whether it is.

        Raises:
            TypeError, ValueError: *timeout* is not a number.
        """
        timeout = time_limit(max(0.0, timeout) if timeout is not None and timeout < 0 else timeout)
        end = math.inf if timeout is None else time.monotonic() + timeout
        pause = WATCH_SECONDS
        while not self._is_set:
            left = end - time.monotonic()
            if self.look is None or not self.look(max(0.0, min(left, pause))):
                return self._wait_for_other_thread(None if timeout is None else max(0.0, left))
            if left <= 0:
                break
            pause = math.inf
        return self._is_set

    def set(self) -> None:
        """Note that the request is cancelled; harmless when that is known. For the server."""
        if self._is_set:
            return
        self._is_set = True
        if self._event is not None:
            self._event.set()
        if self.on_set is not None:
            self.on_set()

    @property
    def is_known(self) -> bool:
        """Whether it is true, without reading what has arrived."""
        return self._is_set

    def _wait_for_other_thread(self, seconds: float | None) -> bool:
        """Wait until another thread sets it."""
        with _LOCK:
            if self._event is None:
                self._event = threading.Event()
        # set() changes the flag before it looks for an event.
        return self._is_set or self._event.wait(seconds)


def withdraw(session: Session, pending: PendingRequest) -> None:
    """Put messages into *session* that cancel *pending*, to each callee, unless it is done. The relay does not cancel calls."""
    if not pending.is_done:
        for packet in cancel_packets(pending, pending.callees):
            post(session, packet)


def cancel_packets(pending: PendingRequest, callees: Iterable[int] | None) -> list[bytes]:
    """Return the messages that cancel *pending* at *callees*, None if they are not known; none for the relay."""
    if pending.key.startswith(RELAY_HEAD):
        return []
    envelope = Envelope(pending.command, pending.uid, expires_seconds=PAST, sent_at=PAST, cancel=1).encode()
    heads = [b""] if callees is None else [connection_address(each) for each in callees]
    return [publish_packet(head + pending.key, envelope) for head in heads]


def post(session: Session, packet: bytes) -> None:
    """Put a publication into *session* that no call waits for."""
    session.pacing.prepare(packet)
    session.send_quietly(packet)
    session.is_dirty = True  # the bus may refuse it
