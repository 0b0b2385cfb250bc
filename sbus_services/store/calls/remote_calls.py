"""Calls of other hosts, through the relay: they read the streams that ``twins`` opens to them. Spec: sbus-store(8), "OTHER HOSTS".

The relay names the host and no user of it. So the rules of the bus, which are about users, decide nothing here, and limits, turns and
durable readers are those of the host.

These calls come on a connection of their own: a bus that does not let the store serve other hosts does not stop the calls of its own users.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from sbus.asyncio.service_bus import ServiceBus
from sbus.errors import RemoteRefusal, SbusError
from sbus.protocol.envelope import relayed_key
from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import framed_data, parse_framed_data
from sbus.protocol.memberships import SERVICE_GROUP, stored_pattern
from sbus.rpc.caller_access import Twins
from sbus.rpc.requests import Request
from sbus.rpc.service import Dispatcher
from sbus_programs.backoff import Attempts
from sbus_programs.config.store import StoreSettings, StreamSettings
from sbus_services.store.calls.admin_calls import AdminCalls
from sbus_services.store.calls.calls import HEAD, Calls, Handle
from sbus_services.store.calls.read_calls import ReadCalls
from sbus_services.store.calls.responses import CallError, restarting
from sbus_services.store.context import StoreContext
from sbus_services.store.engine.messages import EngineError

FIRST_ACCOUNT = -(1 << 40)
"""The account of the host n is this minus n: never a uid, nor one that the file has for an origin of messages."""

_LEASES = "a lease ends with the connection of its worker, which must be one of this bus"
_ON_ITS_HOST = "only users of its host may"

REFUSED = {
    **dict.fromkeys(("take", "ack", "retry", "fail", "extend"), _LEASES),
    **dict.fromkeys(("put", "peek", "purge", "forget", "revive", "acknowledge", "status"), _ON_ITS_HOST),
}
"""Calls that other hosts cannot make, and why: without an answer they would wait until they expire."""


def account_of(twin: int) -> int:
    """Return the account of the host *twin*: what a uid is for a user."""
    return FIRST_ACCOUNT - twin


class RelayedDispatcher(Dispatcher):
    """Services for other hosts only: users of this host have another connection of the store."""

    def patterns(self, address: bytes) -> list[bytes]:
        """Return the patterns to store."""
        keys = [relayed_key(command) for command in self._services]
        return [each for key in keys for each in (stored_pattern(key, SERVICE_GROUP.encode()), address + key)]


class RemoteReadCalls(ReadCalls):
    """Serves the calls that read streams to other hosts."""

    def __init__(self, context: StoreContext, admin: AdminCalls) -> None:
        super().__init__(context)
        self._admin = admin

    async def streams(self, request: Request, _head: object, _frames: list[bytes]) -> bytes:
        """Serve ``store/streams``: the streams that the calling host may read."""
        figures = {each.name: each for each in (await self._admin.figures()).streams}
        listed = [
            self._admin.described(figures.get(each.name), each, request.caller.uid, is_owner=False)
            for each in self._context.routes.settings.streams
            if each.is_open_to(request.source)
        ]
        return framed_data({"streams": listed, "queues": [], "run": self._context.run})

    async def _with_last_values(self, request: Request, pattern: bytes) -> list[StreamSettings]:
        return [each for each in self._context.routes.with_last_values(pattern) if each.is_open_to(request.source)]

    async def _check_stream(self, request: Request, stream: StreamSettings, pattern: bytes) -> None:
        del pattern  # it selects among what the host may read
        if not stream.is_open_to(request.source):
            raise CallError("EACCES", f"twin {request.source} may not read stream {stream.name!r}; see twins in store.toml(5)")


class RemoteCalls:
    """The calls of other hosts. *calls* are those of users."""

    def __init__(self, context: StoreContext, calls: Calls) -> None:
        self._context = context
        reads = RemoteReadCalls(context, calls.admin)
        self._handlers: dict[str, Handle] = {
            "last": reads.last,
            "read": reads.read,
            "position": reads.position,
            "streams": reads.streams,
        }

    def dispatcher(self) -> Dispatcher:
        """Return the services for one connection."""
        made = RelayedDispatcher()
        for name, handle in self._handlers.items():
            made.add(HEAD + name, self._handler(handle), None, Twins())
        for name, reason in REFUSED.items():
            made.add(HEAD + name, partial(_refuse, reason), None, Twins())
        return made

    def _handler(self, handle: Handle) -> Callable[[Request], Awaitable[bytes]]:
        """Return the handler of a command."""

        async def serve(request: Request) -> bytes:
            context, account = self._context, account_of(request.source)
            if context.is_stopping:
                raise restarting()
            code: str
            charged = replace(request, caller=replace(request.caller, uid=account))
            context.counts["remote_calls"] += 1
            try:
                with context.calls.held(account):
                    head, frames = parse_framed_data(request.data)
                    return await handle(charged, head, frames)
            except EngineError as error:
                code, words = error.code, error.reason
            except ProtocolError as error:
                code, words = error.code.name, error.words
            except CallError as error:
                code, words = error.code, error.words
            context.counts["remote_refusals"] += 1
            raise CallError(code, words.replace(f"user {account}", f"twin {request.source}"))

        return serve


def _refuse(reason: str, request: Request) -> bytes:
    """Reject a call that other hosts cannot make. Raises CallError."""
    raise CallError("EACCES", f"{request.command} cannot be called from another host: {reason}")


REFUSED_SECONDS = 30.0
"""Pause after the bus has refused the services: its administrator has to change a rule."""


class _RelayedBus(ServiceBus):
    """A connection that serves other hosts; make one with ``_RelayedBus.connect``."""

    async def serve_relayed(self, calls: RemoteCalls, ready: Callable[[], None]) -> None:
        """Serve until the bus is closed. Raises what ``serve`` raises."""
        self._dispatcher = calls.dispatcher()
        await self.dispatch(self._dispatcher, ready)


class RemoteService:
    """Serves other hosts while a stream is open to one. *report* gets one line for each problem."""

    def __init__(self, calls: RemoteCalls, report: Callable[[str], None]) -> None:
        self._calls = calls
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._bus: _RelayedBus | None = None

    def configure(self, settings: StoreSettings) -> None:
        """Serve, or end, as *settings* say."""
        is_wanted = any(stream.twins for stream in settings.streams)
        if is_wanted and self._task is None:
            self._task = asyncio.ensure_future(self._run(settings.bus or None))
        elif not is_wanted and self._task is not None:
            self._task.cancel()
            self._task = None

    async def respond_to_all(self) -> None:
        """Accept no further calls, and return when those that have come are answered."""
        if self._bus is not None and self._serving is not None:
            self._bus.stop_serving()
            await asyncio.wait([self._serving])
            with contextlib.suppress(SbusError, OSError):
                await self._bus.flush()

    async def close(self) -> None:
        """End the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, address: str | None) -> None:
        """Serve, and connect again whenever the connection ends, until cancelled."""
        async for _ in Attempts():
            try:
                async with _RelayedBus.connect(address, name="sbus-store other hosts") as bus:
                    self._bus = bus
                    self._serving = asyncio.ensure_future(bus.serve_relayed(self._calls, lambda: None))
                    try:
                        await asyncio.shield(self._serving)
                    finally:
                        self._serving.cancel()
                        await asyncio.wait([self._serving])
                        self._bus = self._serving = None
            except RemoteRefusal as refusal:
                self._report(f"the bus does not let the store serve other hosts: {refusal}; see OTHER HOSTS in sbus-store(8)")
                await asyncio.sleep(REFUSED_SECONDS)
            except (SbusError, OSError):
                pass  # the connections for users report a bus that is away
