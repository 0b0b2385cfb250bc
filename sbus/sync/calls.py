# Made from sbus/asyncio/calls.py by "make faces": edit that.
"""Calls and services: a part of a bus."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from sbus.arguments import check_callable
from sbus.encoding import Data, payload_bytes, service_group
from sbus.protocol.credentials import Peer
from sbus.protocol.memberships import SERVICE_GROUP
from sbus.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Caller, Invocation, Outcome
from sbus.rpc.group_call import GroupCall
from sbus.rpc.stream_call import STREAM_WINDOW, StreamCall, StreamInvocation
from sbus.session import Session
from sbus.sync.link import SyncLink

if TYPE_CHECKING:
    from sbus.rpc.caller_access import Allow, Twins
    from sbus.rpc.requests import H
    from sbus.rpc.service import Dispatcher


class CallMethods:
    """Calls and services, a part of a bus."""

    _link: SyncLink
    _session: Session
    _caller: Caller | None = None
    _dispatcher: Dispatcher | None = None

    def call(
        self,
        command: str,
        data: Data = b"",
        *,
        timeout: float | None = CALL_SECONDS,
        member: Peer | None = None,
        twin: int | None = None,
        tries: int = CALL_TRIES,
        context: str = "",
    ) -> Answer:
        """Send the request *data* to a service of *command*, and return its response. Spec: sbus-rpc(7).

        Of several services of one user, one gets the request. If several users have services, one of each gets it, and the first
        response is returned. With *member*, from ``members`` or ``presence``, only that service gets it. With *twin*, the service is on
        that remote host, which the relay tries to reach again up to *tries* times. *timeout* is in seconds; None means no limit, and an
        hour between hosts. The response's ``callee`` is the service that responded, as verified by the bus. *context* is the W3C
        traceparent of the caller's span, for ``request.context``. From the first call on, messages arrive with their senders.

        Raises:
            NoRecipient: the command has no service; raised at once.
            PeerDisconnected: the service disconnected; raised at once. It may have run the command.
            CallTimeout: no response in time. A service may have run the command, and is asked to stop; a late response is dropped. If
                its ``is_sent`` is false, the request was not sent.
            RemoteError: the service responded with an error.
            RemoteRefusal: the bus does not permit the call.
            ValueError: *command*, *twin*, *tries* or *context* is invalid, or both *member* and *twin* are given.
            PayloadTooLarge, AnswerLost, Disconnected: as elsewhere.
        """
        request = Invocation(command, payload_bytes(data, "data"), timeout, twin, tries, context)
        return self._link.run(self._begin_calls().call(request, member))

    def call_all(self, command: str, data: Data = b"", *, timeout: float | None = CALL_SECONDS, context: str = "") -> Iterator[Outcome]:
        """Send the request *data* to each service of *command*, and yield an ``Outcome`` of each, in the order of their completion.

        The services are those present at the beginning. Each is called at its own address, and each has *timeout* seconds. An
        ``Outcome`` has the response or the error. If the command has no service, nothing is yielded. *context* is as for ``call``.
        Raises what ``members`` raises, and ValueError if *command* or *context* is invalid.
        """
        group = GroupCall(self._begin_calls(), Invocation(command, payload_bytes(data, "data"), timeout, context=context))
        try:
            while (outcome := self._link.run(group.next())) is not None:
                yield outcome
        finally:
            self._link.change(group.close)

    def stream(
        self,
        command: str,
        data: Data = b"",
        *,
        timeout: float | None = CALL_SECONDS,
        member: Peer | None = None,
        window: int = STREAM_WINDOW,
        context: str = "",
    ) -> Generator[Answer]:
        """Send the request *data* to a service of *command*, and yield the parts of its response. Spec: sbus-rpc(7), "A stream".

        If several services run it, the stream is that of the first part. At most *window* parts are on the way, so a service is as fast
        as the loop. Leaving the loop cancels the stream; with ``AsyncBus`` use ``contextlib.aclosing``. *timeout* in seconds limits the
        wait for each part. The loop ends without an error only after the last part; AnswerLost says that one is missing. Services of
        remote hosts cannot stream to this one. Raises what ``call`` raises, and ValueError if *window* is not 1 to 1024.
        """
        request = StreamInvocation(command, payload_bytes(data, "data"), timeout, context=context, window=window)
        stream = StreamCall(self._begin_calls(), request, member)
        try:
            while (part := self._link.run(stream.next())) is not None:
                yield part
        finally:
            self._link.change(stream.close)

    def service(
        self, command: str, *, allow: Allow | None = None, twins: Twins | None = None, group: str | bytes = SERVICE_GROUP
    ) -> Callable[[H], H]:
        """Return a decorator for the function that handles *command*; :meth:`serve` serves all decorated functions.

        The function gets a ``Request`` and returns bytes, text or None; with ``AsyncBus`` it may be a coroutine function. If
        it is a generator function, callers get its parts by ``stream``; with ``AsyncBus`` it may be asynchronous. With *allow*,
        only those users and groups may call; other callers get an error. Remote hosts may call only with *twins*. The caller gets the
        words of a ``ServiceError``. Of any other exception it gets one line, and the traceback is logged. If the caller cancels the
        request or disconnects, ``request.cancelled`` becomes true, and the task of a coroutine is cancelled. To finish nevertheless,
        use ``asyncio.shield``. Of all services of this user with the same command and *group*, a name of 1 to 64 bytes, one runs each
        call. With an empty *group*, this service runs every call that is not sent to another one alone.

        Raises:
            TypeError: an argument has a wrong type, or the function cannot be called with one argument.
            ValueError: *command* is invalid or already has a function.
            RuntimeError: ``serve`` has begun.
        """
        from sbus.rpc.handlers import check_service  # noqa: PLC0415 - most programs serve nothing

        check_service(command, allow, twins)
        dispatcher, members = self._begin_services(), service_group(group)

        def decorate(handler: H) -> H:
            dispatcher.add(command, handler, allow, twins, members)
            return handler

        return decorate

    def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        """Serve the commands of :meth:`service` until the bus is closed, or ``stop_serving`` is called.

        *ready* is called when callers can find them. Users take turns, however many requests each has sent. A ``Bus`` runs one handler
        at a time, in this thread. An ``AsyncBus`` runs up to 64 coroutines concurrently; plain functions block its loop. Requests that
        still wait at the end get an error: the service has stopped. From now on, messages arrive with their senders.

        Raises:
            RemoteRefusal: the bus does not permit this client to serve one of the commands.
            ValueError: :meth:`service` was not called.
            RuntimeError: another ``serve`` runs on this bus.
        """
        check_callable(ready, "ready")
        from sbus.sync.server import Server  # noqa: PLC0415 - most programs serve nothing

        Server(self._link, self._begin_services()).run(ready)

    def stop_serving(self) -> None:
        """End ``serve`` when the requests that have arrived have been run and answered; new ones are not accepted. Does not wait for that.

        A handler may call it: its own response is sent too. Harmless when nothing is served.
        """
        if self._dispatcher is not None and self._dispatcher.inbox is not None:
            # Callers ask whether the service is still at its address, until its responses have arrived.
            self._link.drain(self._dispatcher.inbox, keep=self._session.address)

    def _begin_calls(self) -> Caller:
        """Return the caller of this connection."""
        with self._link.entered():
            if self._caller is None:
                self._caller = Caller(self._session)
            return self._caller

    def _begin_services(self) -> Dispatcher:
        """Return the services of this connection."""
        if self._dispatcher is None:
            from sbus.rpc.service import Dispatcher  # noqa: PLC0415 - most programs serve nothing

            self._dispatcher = Dispatcher()
        return self._dispatcher
