"""The requests of a service that are queued or run, and the callers that are watched for them. No I/O. Spec: sbus-rpc(7) §7."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from sbus.bus_calls import Call, Expects, PresenceCall
from sbus.errors import AnswerLost, RemoteRefusal
from sbus.inbox import Inbox
from sbus.protocol import controls
from sbus.protocol.packets import control_packet, subscribe_packet, unsubscribe_packet
from sbus.rpc.cancellation import Cancellation
from sbus.rpc.pending_requests import DISCONNECT_HEAD
from sbus.session import Session

_WATCHED_CALLERS = 1_024
"""Callers that are watched although no request of theirs runs, so that the next long call needs no subscription; as for callees."""


class LiveRequest(Protocol):
    """A request with its response key, as it is kept here."""

    @property
    def place(self) -> tuple[int, str]:
        """The connection of the caller, and the ``uid``."""

    @property
    def command(self) -> str:
        """The command."""

    @property
    def cancelled(self) -> Cancellation:
        """Whether it is cancelled."""

    @property
    def reply_key(self) -> bytes:
        """The key for its response; empty if none is wanted."""


class LiveRequests:
    """The requests that are queued or run."""

    def __init__(self) -> None:
        self._requests: dict[tuple[int, str], LiveRequest] = {}

    def __len__(self) -> int:
        """Return their number."""
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        """Yield those of now, oldest first."""
        return iter(tuple(self._requests.values()))

    def __contains__(self, place: tuple[int, str]) -> bool:
        """Return whether the request of a connection and ``uid`` is queued or runs."""
        return place in self._requests

    def add(self, request: LiveRequest) -> None:
        """Note that *request* is queued."""
        self._requests[request.place] = request

    def remove(self, request: LiveRequest) -> None:
        """Note that *request* has ended; harmless when that is known."""
        self._requests.pop(request.place, None)

    def cancel(self, place: tuple[int, str], command: str) -> bool:
        """Cancel a request; return False if there is none at *place* with that command."""
        request = self._requests.get(place)
        if request is None or request.command != command or request.cancelled.is_known:
            return False
        request.cancelled.set()
        return True

    def abandon(self, connection: int | None = None) -> None:
        """Cancel the requests of a connection that has ended, None for all connections, except those that want no response."""
        for request in self:
            if request.reply_key and connection in {None, request.place[0]}:
                request.cancelled.set()


class CallerWatch:
    """Watches the connections whose requests take long, and cancels their requests when they end.

    A caller is watched when a request of it was there in two consecutive calls of :meth:`look`.
    """

    def __init__(self, session: Session, inbox: Inbox, live: LiveRequests) -> None:
        """Events arrive in *inbox*, that of the services."""
        self._session = session
        self._inbox = inbox
        self._live = live
        self._watched: OrderedDict[int, None] = OrderedDict()
        self._asked: dict[int, Call] = {}
        """The last question about each caller, until its answer is seen."""

    def look(self) -> list[Call]:
        """Begin to watch the callers of requests that take long, and return the questions that the bus has not answered yet.

        Duty: send what the session has then.
        """
        for request in self._live:
            if not request.reply_key or request.cancelled.is_known:
                continue
            if request.cancelled.is_old:
                self.watch(request)
            request.cancelled.is_old = True
        return self._open_questions()

    def left(self, key: bytes) -> bool:
        """Handle a message with *key*; return whether it is the event of a disconnection."""
        if not key.startswith(DISCONNECT_HEAD):
            return False
        digits = key[len(DISCONNECT_HEAD) :]
        if digits.isdigit() and len(digits) <= 20:
            self._live.abandon(int(digits))
            self._forget(int(digits))
        return True

    def lost(self) -> None:
        """Ask again whether the watched callers are connected: the events of their end may be lost.

        What is lost so far precedes the answer to an open question, so none is asked a second time.
        """
        self._open_questions()
        for request in self._live:
            connection = request.place[0]
            if request.reply_key and connection in self._watched and connection not in self._asked:
                self._ask(request)

    def reconnected(self) -> None:
        """Cancel all requests of the former connection: their callers have been told that this service has disconnected."""
        self._live.abandon()
        for connection in tuple(self._watched):
            self._forget(connection)

    def watch(self, request: LiveRequest) -> list[Call]:
        """Watch the caller of *request*, unless that is done. Return as :meth:`look`."""
        connection = request.place[0]
        if connection in self._watched:
            self._watched.move_to_end(connection)
            return self._open_questions()
        self._watched[connection] = None
        pattern = _pattern(connection)
        self._session.routes.add_pattern(self._inbox, pattern)
        call = Call(f"SUB {repr(pattern)[1:]}", Expects.SILENCE, pattern)
        call.on_done.append(partial(self._subscribed, connection, call))
        self._session.send_call(call, subscribe_packet(pattern))
        self._ask(request)
        self._forget_oldest()
        return self._open_questions()

    def _open_questions(self) -> list[Call]:
        """Return the questions that the bus has not answered yet."""
        self._asked = {connection: call for connection, call in self._asked.items() if not call.is_done}
        return list(self._asked.values())

    def _subscribed(self, connection: int, call: Call) -> None:
        """Note that a rule hides the end of the caller; it is not asked for again."""
        if isinstance(call.error, RemoteRefusal):
            self._session.routes.drop_pattern(self._inbox, _pattern(connection))

    def _ask(self, request: LiveRequest) -> None:
        """Ask the bus whether the caller of *request* is connected: it receives responses then."""
        gone: Callable[[], None] = partial(self._live.abandon, request.place[0])
        question = control_packet(controls.MEMBERS, request.reply_key)
        call = self._asked[request.place[0]] = self._session.send_call(PresenceCall(gone), question)
        call.on_done.append(partial(self._answered, call))

    def _answered(self, call: Call) -> None:
        """Ask again if the answer to a question is lost."""
        if isinstance(call.error, AnswerLost):
            self.lost()

    def _forget(self, connection: int) -> None:
        """Stop watching a caller; harmless when it is not watched."""
        if connection in self._watched:
            del self._watched[connection]
            if self._session.routes.drop_pattern(self._inbox, _pattern(connection)):
                self._session.send_quietly(unsubscribe_packet(_pattern(connection)))

    def _forget_oldest(self) -> None:
        """If too many callers are watched, stop watching the first of which no request is there."""
        if len(self._watched) > _WATCHED_CALLERS:
            needed = {request.place[0] for request in self._live}
            for connection in self._watched:
                if connection not in needed:
                    self._forget(connection)
                    return


def _pattern(connection: int) -> bytes:
    """Return the pattern of the event that a connection has ended."""
    return b"%b%d" % (DISCONNECT_HEAD, connection)
