"""One connection to a NATS server: TLS, authentication, reading, writing and pings. All buffers are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sbus.asyncio.look_ups import in_thread
from sbus.protocol import __version__
from sbus.protocol.printable import printable
from sbus_services.link.network import nats_protocol as protocol
from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.network.credential_files import NkeyError, sign
from sbus_services.link.network.nats_protocol import Delivery, Event, Info, InvalidBytesError, NatsParser, Ping, Pong, ServerError
from sbus_services.link.network.streams import MAX_WORDS, Stall, Turn, error_words, open_streams
from sbus_services.link.ports import NetworkEvents
from sbus_services.link.shared_queue import Queued, SharedQueue

DEFAULT_PORT = 4222
CONNECT_SECONDS = 5.0
"""For the address lookup, the connection, TLS and authentication together."""
PING_SECONDS = 2.0
SILENCE_SECONDS = 6.0
"""A server that sends nothing for so long, not even the response to a ping, is gone."""

READ_BYTES = 1 << 16
WRITE_BYTES = 1 << 18
"""How much is given to the socket at once."""

_HEAD, _END_OF_HEAD = b"NATS/1.0\r\nS: ", b"\r\n\r\n"


class ConnectFailedError(Exception):
    """The server cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who the client is, besides its certificate: *user* and *password*, or the *seed* of an nkey, or neither."""

    user: str = ""
    password: str = ""
    seed: str = ""


class NatsConnection:
    """Use :meth:`open` once, then await :attr:`ended`; then :meth:`abort`."""

    def __init__(self, events: NetworkEvents, counters: NetworkCounters, stall: Stall, tls: ssl.SSLContext | None) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection has ended."""
        self.server_version = ""
        """The version that the server announces."""
        self.was_silent = False
        """Whether there was a connection, and the server has sent nothing: perhaps it waits for the TLS handshake."""
        self.own_address = ""
        """The address of this end, as the server announces it, or else as this host knows it."""
        self._events = events
        self._counters = counters
        self._stall = stall
        self._tls = tls
        self._parser = NatsParser()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._out = SharedQueue[Queued]()
        self._has_output = asyncio.Event()
        self._room = asyncio.Event()
        self._barriers: deque[int | None] = deque()
        self._last_received = asyncio.get_running_loop().time()
        self._last_error = ""

    @property
    def pending_bytes(self) -> int:
        """Bytes that the socket has not taken."""
        return self._out.bytes

    @property
    def max_payload_bytes(self) -> int:
        """The server's limit for head and body together."""
        return self._parser.max_payload

    async def open(self, server: str, name: str, credentials: Credentials, *, tls_first: bool = False) -> None:
        """Connect to the URL *server* as the client *name*; with *tls_first*, the server has ``handshake_first``.

        Raises:
            ConnectFailedError: the server cannot be used.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                early = await self._connect(server, name, credentials, tls_first=tls_first)
        except (OSError, EOFError, InvalidBytesError) as error:  # also a TimeoutError
            self.abort()
            raise ConnectFailedError(error_words(error)) from None
        except BaseException:
            self.abort()
            raise
        self._tasks = [asyncio.ensure_future(each) for each in (self._read(early), self._write(), self._ping())]

    def abort(self) -> None:
        """Close the connection at once."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.transport.abort()
        self._end("closed")

    def send(self, command: bytes) -> None:
        """Queue a command, which cannot be dropped."""
        self._queue(Queued(command), None)

    def send_message(self, subject: str, head: bytes, body: bytes, owner: int) -> bool:
        """Queue a message; return whether it is within the server's limit."""
        header = b"".join((_HEAD, head, _END_OF_HEAD))
        if len(header) + len(body) > self.max_payload_bytes:
            return False
        self._queue(Queued(protocol.publish(subject.encode("ascii"), header, body), len(head) + len(body)), owner)
        return True

    def drop(self, most: int) -> int:
        """Drop messages until at most *most* bytes are pending: the newest of the owner with the most. Return their number."""
        dropped = 0
        while self._out.bytes > most and self._out.drop_newest() is not None:
            dropped += 1
        return dropped

    def _queue(self, queued: Queued, owner: int | None) -> None:
        """Queue a command; None: it cannot be dropped."""
        self._out.add(queued, len(queued.data), owner)
        self._has_output.set()

    def send_ping(self, number: int | None) -> None:
        """Queue a ping; its response passes the barrier *number*."""
        self._barriers.append(number)
        self.send(protocol.PING)

    async def wait_for_room(self, most: int) -> None:
        """Return when at most *most* bytes are pending, or the connection has ended."""
        while self.pending_bytes > most and not self.ended.done():
            self._room.clear()
            await self._room.wait()

    # Connecting

    async def _connect(self, server: str, name: str, credentials: Credentials, *, tls_first: bool) -> list[Event]:
        """Connect and authenticate; return what the server sent after its first PONG."""
        parts = urlsplit(server)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
        sock = await _connected(host, port)
        self.was_silent = True
        try:
            if not tls_first:
                info, early = await self._announced(partial(asyncio.get_running_loop().sock_recv, sock, READ_BYTES))
                self._check(info)
                self._check_early(early)
            if self._tls is None:
                self._reader, self._writer = await open_streams(sock=sock, limit=READ_BYTES)
            else:
                self._reader, self._writer = await open_streams(sock=sock, limit=READ_BYTES, ssl=self._tls, server_hostname=host)
            if tls_first:
                info, early = await self._announced(partial(self._reader.read, READ_BYTES))
                self._check(info)
        except BaseException:
            if self._writer is None:
                sock.close()
            raise
        self.own_address = printable(str(info.get("client_ip") or sock.getsockname()[0]), 64)
        self._writer.write(protocol.connect(_introduction(name, credentials, info, self._tls is not None)) + protocol.PING)
        return await self._await_pong(self._reader, early)

    async def _announced(self, receive: Callable[[], Awaitable[bytes]]) -> tuple[Mapping[str, Any], list[Event]]:
        """Return what the server announces, and what it sent after that. Bytes before TLS are not authenticated.

        Raises:
            ConnectFailedError: it is not a NATS server; also OSError, EOFError, InvalidBytesError.
        """
        while True:
            chunk = await receive()
            if not chunk:
                raise EOFError("the server closed the connection")
            self.was_silent = False
            if events := self._parser.feed(chunk):
                if not isinstance(events[0], Info):
                    raise ConnectFailedError("the server does not begin with INFO; it is not a NATS server")
                return events[0].fields, events[1:]

    def _check(self, info: Mapping[str, Any]) -> None:
        """Refuse a server before a password is sent, if it does not offer what is needed. Raises ConnectFailedError."""
        requires_tls = info.get("tls_required") is True
        if self._tls is not None and self._writer is None and not (requires_tls or info.get("tls_available") is True):
            raise ConnectFailedError("the server does not offer TLS; set tls in its configuration")
        if self._tls is None and requires_tls:
            raise ConnectFailedError("the server requires TLS; set tls in the configuration of the link")
        if info.get("headers") is not True:
            raise ConnectFailedError("the server does not know headers; it must be version 2.2 or later")
        self.server_version = printable(str(info.get("version", "")), 40)

    def _check_early(self, events: list[Event]) -> None:
        """Refuse a server that sends more before TLS, which is not authenticated. Raises ConnectFailedError."""
        if self._tls is not None and (events or self._parser.is_within):
            raise ConnectFailedError("the server sent something before TLS")

    async def _await_pong(self, reader: asyncio.StreamReader, events: list[Event]) -> list[Event]:
        """Read until the server has accepted the client. Raises ConnectFailedError with the server's words if it does not."""
        while True:
            for index, event in enumerate(events):
                if isinstance(event, Pong):
                    return events[index + 1 :]
                if isinstance(event, ServerError):
                    raise ConnectFailedError(f"the server said: {event.words}")
                if isinstance(event, Ping) and self._writer is not None:
                    self._writer.write(protocol.PONG)
            chunk = await reader.read(READ_BYTES)
            if not chunk:
                raise EOFError("the server closed the connection")
            events = self._parser.feed(chunk)

    # Connected

    async def _read(self, events: list[Event]) -> None:
        """Report what the server sends, in order, until the end of the connection."""
        loop = asyncio.get_running_loop()
        reader = self._reader
        turn = Turn(self._stall)
        try:
            while reader is not None:
                for event in events:
                    self._handle(event)
                    if turn.is_over():
                        await turn.next()
                        self._last_received = loop.time()
                await turn.next()
                self._last_received = loop.time()
                chunk = await reader.read(READ_BYTES)
                if not chunk:
                    break
                events = self._parser.feed(chunk)
            self._end(self._last_error or "the server closed the connection")
        except (OSError, InvalidBytesError) as error:
            self._end(self._last_error or error_words(error))
        except Exception as error:  # a defect of the receiver of the events: the process must not continue without it
            if not self.ended.done():
                self.ended.set_exception(error)

    def _handle(self, event: Event) -> None:
        match event:
            case Delivery():
                self._receive(event)
            case Pong():
                number = self._barriers.popleft() if self._barriers else None
                if number is not None:
                    self._events.barrier_passed(number)
            case Ping():
                self.send(protocol.PONG)
            case ServerError():
                self._reject(event.words[:MAX_WORDS])
            case Info():
                """The server announces others of its cluster; the configuration names those that are used."""

    def _receive(self, message: Delivery) -> None:
        """Deliver a message."""
        head = b""
        if message.header.startswith(_HEAD) and message.header.endswith(_END_OF_HEAD):
            head = message.header[len(_HEAD) : -len(_END_OF_HEAD)]
        self._counters.messages_in += 1
        self._counters.bytes_in += len(head) + len(message.payload)
        with contextlib.suppress(UnicodeDecodeError):  # no link publishes to such a subject
            self._events.received(message.subject.decode("ascii"), head, message.payload)

    def _reject(self, reason: str) -> None:
        """Report an error of the server, which may be the reason why it closes the connection."""
        self._counters.rejected += 1
        self._last_error = f"the server said: {reason}"
        self._events.rejected(reason)

    async def _ping(self) -> None:
        """Send pings, and end the connection if the server is silent. Any byte shows that it lives."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_SECONDS)
            if not self._stall.is_active and loop.time() - self._last_received > SILENCE_SECONDS:
                self._end(f"the server has sent nothing for {SILENCE_SECONDS:g} s")
                return
            self.send_ping(None)

    async def _write(self) -> None:
        """Write everything that waits, as far as the socket takes it."""
        writer = self._writer
        if writer is None:
            return
        try:
            while True:
                await self._has_output.wait()
                while self._out:
                    writer.write(self._next_chunk())
                    await writer.drain()
                    self._room.set()
                self._has_output.clear()
        except OSError as error:
            self._end(self._last_error or error_words(error))

    def _next_chunk(self) -> bytes:
        """Take what is written next."""
        taken: list[bytes] = []
        size = 0
        while self._out and size < WRITE_BYTES:
            data, content = self._out.pop()
            taken.append(data)
            size += len(data)
            if content is not None:
                self._counters.messages_out += 1
                self._counters.bytes_out += content
        return b"".join(taken)

    def _end(self, reason: str) -> None:
        """Note why the connection has ended."""
        if not self.ended.done():
            self.ended.set_result(reason)
        self._room.set()


async def _connected(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to one of the addresses of *host*, tried in turn. Raises OSError."""
    loop = asyncio.get_running_loop()
    addresses = await in_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    failure: OSError = OSError(f"no address of {host}")
    for family, kind, number, _, address in addresses:
        sock = socket.socket(family, kind, number)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                await loop.sock_connect(sock, address)
        except OSError as error:  # also a TimeoutError
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise failure


def _introduction(name: str, credentials: Credentials, info: Mapping[str, Any], has_tls: bool) -> dict[str, Any]:
    """Return the fields of CONNECT. Raises ConnectFailedError if the credentials cannot be used."""
    fields: dict[str, Any] = {
        "name": name,
        "lang": "sbus-link",
        "version": __version__,
        "protocol": 1,
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": False,
        "echo": False,
        "tls_required": has_tls,
    }
    if credentials.user:
        fields |= {"user": credentials.user, "pass": credentials.password}
    if credentials.seed:
        nonce = info.get("nonce")
        if not isinstance(nonce, str):
            raise ConnectFailedError("the server does not use nkeys; configure the nkey of this host there")
        try:
            fields["nkey"], fields["sig"] = sign(credentials.seed, nonce.encode())
        except NkeyError as error:
            raise ConnectFailedError(str(error)) from None
    return fields
