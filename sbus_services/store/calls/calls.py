"""The commands of the store, with the common form of their data, limits and errors. Spec: sbus-store(8), "CALLS"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sbus import AsyncBus
from sbus.protocol.credentials import UNKNOWN_ID
from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import parse_framed_data
from sbus.rpc.requests import Request
from sbus_services.store.calls.admin_calls import AdminCalls
from sbus_services.store.calls.job_calls import JobCalls
from sbus_services.store.calls.put_call import PutCall
from sbus_services.store.calls.read_calls import ReadCalls
from sbus_services.store.calls.responses import CallError, restarting
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.messages import EngineError

Handle = Callable[[Request, dict[str, Any], list[bytes]], Awaitable[bytes]]

HEAD = "store/"


class Calls:
    """The calls of one store. *status* returns its state."""

    def __init__(self, context: StoreContext, status: Callable[[], Awaitable[bytes]]) -> None:
        self._context = context
        self._status = status
        reads, jobs, self.admin = ReadCalls(context), JobCalls(context), AdminCalls(context)
        self.jobs = jobs
        self._handlers: dict[str, Handle] = {
            "put": PutCall(context),
            "last": reads.last,
            "read": reads.read,
            "position": reads.position,
            "take": jobs.take,
            "ack": jobs.ack,
            "retry": jobs.retry,
            "fail": jobs.fail,
            "extend": jobs.extend,
            "peek": self.admin.peek,
            "purge": self.admin.purge,
            "forget": self.admin.forget,
            "revive": self.admin.revive,
            "acknowledge": self.admin.acknowledge,
            "streams": self.admin.streams,
        }

    def serve_on(self, bus: AsyncBus) -> None:
        """Register all commands on *bus*."""
        for name, handle in self._handlers.items():
            bus.service(HEAD + name)(self._handler(handle))
        bus.service(HEAD + "status")(self._on_status)

    def _handler(self, handle: Handle) -> Callable[[Request], Awaitable[bytes]]:
        """Return the handler of a command."""

        async def serve(request: Request) -> bytes:
            context, uid = self._context, request.caller.uid
            if context.is_stopping:
                raise restarting()
            if uid == UNKNOWN_ID:
                raise CallError("EACCES", "the caller is not a user of this host, and the store knows no rules for it")
            with context.calls.held(uid):
                try:
                    head, frames = parse_framed_data(request.data)
                    return await handle(request, head, frames)
                except EngineError as error:
                    raise CallError(error.code, error.reason) from None
                except ProtocolError as error:
                    raise CallError(error.code.name, error.words) from None

        return serve

    async def _on_status(self, _request: Request) -> bytes:
        return await self._status()
