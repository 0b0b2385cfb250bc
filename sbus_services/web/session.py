"""One session: a WebSocket of a browser, its connection to the bus, and the patterns and keys that it may use. Spec: sbus-web(8).

Requests are handled one after another. Each subscription has a queue of limited size, which discards and counts messages while the browser
does not read, so memory is bounded. A response is not queued: the next request is read when the response was accepted by the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiohttp import WSCloseCode, WSMsgType, web

from sbus import AsyncBus, AsyncSubscription, Overflow, RemoteRefusal, SbusError, Scope
from sbus.pattern_hints import hint
from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import KeySpace, bytes_of, covers, is_matchable, text_of
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.protocol.printable import printable
from sbus_services.web import frames
from sbus_services.web.connections import Names, ask, list_connections

EVERY_ORDINARY_KEY = ""
"""The default: the empty pattern matches every key that is not reserved, so no private key."""

_KEYS = KeySpace()


class NotAllowedError(ProtocolError):
    """The allow list of this gateway does not have a pattern or key."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.EPERM, words)


@dataclass(frozen=True, slots=True)
class AllowList:
    """The patterns for subscriptions and those for publications. An empty tuple allows nothing."""

    subscribe: tuple[bytes, ...]
    publish: tuple[bytes, ...]

    @classmethod
    def of(cls, subscribe: Iterable[str], publish: Iterable[str]) -> AllowList:
        """Return the list with patterns as a user writes them.

        Raises:
            ValueError: a pattern can match no key, so it is a mistake.
        """
        return cls(tuple(map(_checked, subscribe)), tuple(map(_checked, publish)))

    def check_pattern(self, pattern: bytes) -> None:
        """Raise NotAllowedError unless one allowed pattern matches every key that *pattern* matches."""
        # The empty pattern allows each ordinary one, also if it matches no key: it may, if the separator of the bus is another.
        allows_ordinary = b"" in self.subscribe and _KEYS.namespace(pattern) is None
        if not allows_ordinary and not any(covers(allowed, pattern) for allowed in self.subscribe):
            raise NotAllowedError("this gateway does not allow the pattern; start sbus-web with --allow for it")

    def check_key(self, key: bytes) -> None:
        """Raise NotAllowedError unless an allowed pattern matches *key*."""
        if not any(_KEYS.matches(allowed, key) for allowed in self.publish):
            raise NotAllowedError("this gateway does not allow the key; start sbus-web with --allow-publish for it")


def _checked(pattern: str) -> bytes:
    """Return *pattern* as bytes. Raises ValueError if it can match no key."""
    encoded = bytes_of(pattern)
    if not is_matchable(encoded):
        raise ValueError(f"pattern {pattern!r} matches no key: see sbus(7) for the place of a wildcard")
    return encoded


BUS_SECONDS = 10.0
"""Time limit of the bus for a request."""

STATE_SECONDS = 0.5
"""Interval in which a session checks whether it is connected to the bus."""

QUEUE_PACKETS = 1_024
"""Messages that wait for a slow browser, for each pattern."""

_MAX_REFUSALS = 64
"""Refusals between two checks that are reported in full."""

_MAX_REASON_BYTES = 120
"""Size of the reason for which a WebSocket is closed, RFC 6455; it is 123."""

_UNREACHABLE = (ConnectionError, RuntimeError)
"""What aiohttp raises for a WebSocket that is closed or closing."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What all sessions have in common."""

    address: str | None
    scope: Scope | None
    allow: AllowList
    max_patterns: int
    """Patterns of one session."""
    queue_bytes: int
    """Bytes of messages that wait for a slow browser, for each pattern."""


class WebSession:
    """One session, until the browser or the bus ends it."""

    def __init__(self, socket: web.WebSocketResponse, settings: SessionSettings, names: Names) -> None:
        """*socket* is open."""
        self._socket = socket
        self._settings = settings
        self._names = names
        self._pumps: dict[bytes, tuple[AsyncSubscription, asyncio.Task[None]]] = {}
        self._end_reason = ""
        self._refusals: list[RemoteRefusal] = []
        self._further_refusals = 0

    async def run(self) -> str:
        """Serve until the end; return the reason if the bus or the gateway has ended it, else an empty text.

        Raises:
            NoBus: the bus is not available.
        """
        bus = AsyncBus.connect(
            self._settings.address,
            scope=self._settings.scope,
            timeout=BUS_SECONDS,
            reconnect=True,
            queue_packets=QUEUE_PACKETS,
            queue_bytes=self._settings.queue_bytes,
            overflow=Overflow.DISCARD,
            name="sbus-web",
        )
        async with bus:
            bus.on_refused = self._refused
            watch: asyncio.Task[None] | None = None
            try:
                await self._greet(bus)
                watch = asyncio.create_task(self._watch(bus))
                await self._serve(bus)
            except SbusError as error:
                await self.close(str(error))
            except _UNREACHABLE:
                pass  # the browser has gone
            finally:
                tasks = [task for _, task in self._pumps.values()] + ([watch] if watch else [])
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self._end_reason

    async def close(self, reason: str, code: int = WSCloseCode.TRY_AGAIN_LATER) -> None:
        """End the session; the browser gets *code* and *reason*."""
        self._end_reason = self._end_reason or reason
        message = printable(reason).encode()[:_MAX_REASON_BYTES].decode(errors="ignore").encode()
        with contextlib.suppress(*_UNREACHABLE):
            await self._socket.close(code=code, message=message)

    async def _greet(self, bus: AsyncBus) -> None:
        """Send the first frame. Raises SbusError."""
        await bus.tell(controls.SENDER_ON)
        allow = self._settings.allow
        facts = {
            "user": await bus.whoami(),
            "subscribe": [text_of(pattern) for pattern in allow.subscribe],
            "publish": [text_of(pattern) for pattern in allow.publish],
            "max_patterns": self._settings.max_patterns,
            "max_payload_bytes": MAX_PACKET_BYTES,
        }
        await self._socket.send_str(frames.hello(facts))
        await self._socket.send_str(frames.state(bus.state))

    async def _serve(self, bus: AsyncBus) -> None:
        """Handle requests until the browser closes the WebSocket."""
        async for message in self._socket:
            if message.type == WSMsgType.TEXT:
                await self._socket.send_str(await self._answer(bus, message.data))
            elif message.type == WSMsgType.BINARY:
                await self._socket.send_str(frames.error("the frame is binary; send JSON as text"))
            elif message.type == WSMsgType.ERROR:
                self._end_reason = self._end_reason or f"the browser broke the connection: {self._socket.exception()}"

    async def _answer(self, bus: AsyncBus, text: str) -> str:
        """Return the response to a frame, or the error."""
        try:
            request = frames.parse_request(text)
        except frames.InvalidFrameError as wrong:
            return frames.error(str(wrong), number=wrong.id)
        try:
            return frames.result(request, await self._do(bus, request))
        except RemoteRefusal as refusal:
            return frames.error(f"{request.kind}: {refusal.words}", number=request.id, request=request.kind, code=refusal.code)
        except ProtocolError as wrong:
            return frames.error(f"{request.kind}: {wrong.words}", number=request.id, request=request.kind, code=wrong.code)
        except SbusError as wrong:
            return frames.error(f"{request.kind}: {wrong}", number=request.id, request=request.kind)

    async def _do(self, bus: AsyncBus, request: frames.BrowserRequest) -> Mapping[str, object]:
        """Do what a request asks for, and return the members of its response. Raises SbusError."""
        match request.kind:
            case "subscribe":
                return await self._subscribe(bus, request.key)
            case "unsubscribe":
                return await self._unsubscribe(request.key)
            case "publish":
                self._settings.allow.check_key(request.key)
                return {"recipients": await bus.publish(request.key, request.payload, receipt=True)}
            case "connections":
                listing, now = await list_connections(bus), time.monotonic()
                return {**await self._names.add(listing), "time": now}
            case _:
                return {"stats": await ask(bus, controls.STATS)}

    async def _subscribe(self, bus: AsyncBus, pattern: bytes) -> Mapping[str, object]:
        """Begin a subscription. Its messages follow the response: they wait in their queue until it was sent."""
        self._settings.allow.check_pattern(pattern)
        if pattern in self._pumps:
            raise frames.InvalidFrameError("pattern: this session is already subscribed to it")
        if len(self._pumps) >= self._settings.max_patterns:
            raise frames.InvalidFrameError(f"pattern: this session already has {len(self._pumps)} patterns, its maximum")
        subscription = await bus.subscribe(pattern)
        self._pumps[pattern] = (subscription, asyncio.create_task(self._pump(subscription, text_of(pattern))))
        return {"hint": hint(pattern)}

    async def _unsubscribe(self, pattern: bytes) -> Mapping[str, object]:
        """End a subscription. No frame of it follows the response."""
        if pattern not in self._pumps:
            raise frames.InvalidFrameError("pattern: this session is not subscribed to it")
        subscription, pump = self._pumps.pop(pattern)
        await subscription.close()
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)
        return {}

    async def _pump(self, subscription: AsyncSubscription, pattern: str) -> None:
        """Send the items of *subscription* until it ends. While the browser does not read, its queue fills up."""
        try:
            async for item in subscription.items():
                await self._socket.send_str(frames.item(pattern, item))
        except SbusError as error:
            await self.close(str(error))
        except _UNREACHABLE:
            return

    async def _watch(self, bus: AsyncBus) -> None:
        """Report when the connection to the bus is lost or made again, and refusals that no request waited for."""
        known = bus.state
        with contextlib.suppress(*_UNREACHABLE):
            while True:
                await asyncio.sleep(STATE_SECONDS)
                await self._report_refusals()
                if bus.state == "closed":
                    await self.close("the bus has closed the connection for good")
                    return
                if bus.state != known:
                    known = bus.state
                    await self._socket.send_str(frames.state(known))

    def _refused(self, refusal: RemoteRefusal) -> None:
        """Keep a refusal that no request waited for, such as of a pattern that new rules of the bus deny."""
        if len(self._refusals) < _MAX_REFUSALS:
            self._refusals.append(refusal)
        else:
            self._further_refusals += 1

    async def _report_refusals(self) -> None:
        """Send what was kept."""
        refusals, self._refusals = self._refusals, []
        further, self._further_refusals = self._further_refusals, 0
        for refusal in refusals:
            await self._socket.send_str(frames.error(str(refusal), code=refusal.code))
        if further:
            await self._socket.send_str(frames.error(f"the bus has refused {further} more packets"))
