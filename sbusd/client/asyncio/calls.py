"""Calls and services: a part of :class:`~sbusd.client.asyncio.bus.AsyncBus`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

from sbusd.client.arguments import check_callable
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.parts import AsyncBusParts
from sbusd.client.encoding import Data, payload_bytes, service_group
from sbusd.client.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Caller, Invocation, Outcome
from sbusd.client.rpc.group_call import GroupCall
from sbusd.client.rpc.stream_call import STREAM_WINDOW, StreamCall, StreamInvocation
from sbusd.client.session import Session
from sbusd.client.sync.calls import CallMethods
from sbusd.protocol.credentials import Peer
from sbusd.protocol.memberships import SERVICE_GROUP

if TYPE_CHECKING:
    from sbusd.client.rpc.caller_access import Allow, Twins
    from sbusd.client.rpc.service import H


@documented_by(CallMethods)
class AsyncCallMethods(AsyncBusParts):
    """Calls and services, a part of ``AsyncBus``."""

    _session: Session
    _caller: Caller | None = None

    async def call(
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
        request = Invocation(command, payload_bytes(data, "data"), timeout, twin, tries, context)
        return await self._link.run(self._begin_calls().call(request, member))

    async def call_all(
        self, command: str, data: Data = b"", *, timeout: float | None = CALL_SECONDS, context: str = ""
    ) -> AsyncIterator[Outcome]:
        group = GroupCall(self._begin_calls(), Invocation(command, payload_bytes(data, "data"), timeout, context=context))
        try:
            while (outcome := await self._link.run(group.next())) is not None:
                yield outcome
        finally:
            with self._link.entered():
                group.close()
            self._link.push()

    async def stream(
        self,
        command: str,
        data: Data = b"",
        *,
        timeout: float | None = CALL_SECONDS,
        member: Peer | None = None,
        window: int = STREAM_WINDOW,
        context: str = "",
    ) -> AsyncGenerator[Answer]:
        request = StreamInvocation(command, payload_bytes(data, "data"), timeout, context=context, window=window)
        stream = StreamCall(self._begin_calls(), request, member)
        try:
            while (part := await self._link.run(stream.next())) is not None:
                yield part
        finally:
            with self._link.entered():
                stream.close()
            self._link.push()

    def service(
        self, command: str, *, allow: Allow | None = None, twins: Twins | None = None, group: str | bytes = SERVICE_GROUP
    ) -> Callable[[H], H]:
        from sbusd.client.rpc.handlers import check_service  # noqa: PLC0415 - most programs serve nothing

        check_service(command, allow, twins)
        dispatcher, members = self._begin_services(), service_group(group)

        def decorate(handler: H) -> H:
            dispatcher.add(command, handler, allow, twins, members)
            return handler

        return decorate

    async def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        check_callable(ready, "ready")
        from sbusd.client.asyncio.server import AsyncServer  # noqa: PLC0415 - most programs serve nothing

        await AsyncServer(self._link, self._begin_services()).run(ready)

    def stop_serving(self) -> None:
        if self._dispatcher is not None and self._dispatcher.inbox is not None:
            # Callers ask whether the service is still at its address, until its responses have arrived.
            self._link.drain(self._dispatcher.inbox, keep=self._session.address)

    def _begin_calls(self) -> Caller:
        """Return the caller of this connection."""
        with self._link.entered():
            if self._caller is None:
                self._caller = Caller(self._session)
            return self._caller
