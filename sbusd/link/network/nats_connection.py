"""One connection to a NATS server. nats-py connects and authenticates; reading, writing and pings are here.

nats-py queues messages by subscription, so their order on the wire is lost, and its buffers have no bound if a server lies about lengths.
It also continues without TLS if the server does not offer it. The methods of nats-py that are replaced are those with a docstring
"Replaces …"; `tests/unit/link/network/test_nats_connection.py` checks that the installed version has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import Error
from nats.protocol.parser import AWAITING_MSG_PAYLOAD

from sbusd.link.network.counters import NetworkCounters
from sbusd.link.network.error_words import MAX_WORDS, error_words
from sbusd.link.network.stall import Stall
from sbusd.link.ports import NetworkEvents
from sbusd.protocol.printable import printable

CONNECT_SECONDS = 5
PING_SECONDS = 2.0
SILENCE_SECONDS = 6.0
"""A server that sends nothing for so long, not even the response to a ping, is gone."""

READ_BYTES = 1 << 16
WRITE_BYTES = 1 << 18
"""How much is given to the socket at once."""
MAX_LINE_BYTES = 1 << 16
"""Longest line of the server's protocol; INFO is the longest."""
MAX_PAYLOAD_BYTES = 64 << 20
"""The greatest max_payload that NATS knows; a server that announces more is not believed."""

_REPLACED = ("_process_info", "_process_msg", "_process_err", "_process_ping", "_process_pong", "_read_loop", "_ping_interval", "_flusher")

_HEAD, _END_OF_HEAD = b"NATS/1.0\r\nS: ", b"\r\n\r\n"


class ConnectFailedError(Exception):
    """The server cannot be used; the text says why."""


class InvalidBytesError(Exception):
    """The server sent what is not its protocol, or too much of it; the text says what."""


class NatsConnection(Client):
    """Use :meth:`open` once, then await :attr:`ended`; then :meth:`abort`."""

    def __init__(self, events: NetworkEvents, counters: NetworkCounters, stall: Stall, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the connection has ended."""
        self.pending_bytes = 0
        """Bytes that the socket has not taken."""
        self.max_payload_bytes = 0
        """The server's limit for head and body together."""
        self._events = events
        self._counters = counters
        self._stall = stall
        self._tls = tls
        self._out: deque[bytes] = deque()
        self._has_output = asyncio.Event()
        self._room = asyncio.Event()
        self._arrived: list[Callable[[], None]] = []
        self._barriers: deque[int | None] = deque()
        self._heard = asyncio.get_running_loop().time()
        self._last_error = ""

    async def open(self, server: str, name: str, **credentials: str) -> None:
        """Connect to the URL *server*. *credentials*: ``user`` and ``password``, or ``nkeys_seed_str``. Raises ConnectFailedError."""
        if not all(inspect.iscoroutinefunction(getattr(Client, each, None)) for each in _REPLACED):
            # Versions before 2.16 would not await the check that a server offers TLS.
            raise ConnectFailedError("the installed nats-py has other methods than this program replaces; install nats-py 2.16 or later")
        errors: list[Exception] = []

        async def note(error: Exception) -> None:
            errors.append(error)

        tls = {} if self._tls is None else {"tls": self._tls}
        once: dict[str, Any] = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
        try:
            async with asyncio.timeout(CONNECT_SECONDS + 1):
                await self.connect(
                    [server], name=name, error_cb=note, no_echo=True, connect_timeout=CONNECT_SECONDS, **once, **tls, **credentials
                )
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:  # nats-py raises anything for what a hostile server sends
            self.abort()
            raise ConnectFailedError(error_words(errors[0] if errors else error)) from None

    @property
    def server_version(self) -> str:
        """The version that the server announces."""
        return printable(str(self._server_info.get("version", "")), 40)

    def abort(self) -> None:
        """Close the connection at once."""
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()
        writer = self._transport._io_writer if self._transport is not None else None
        if writer is not None:
            writer.transport.abort()
        self._end("closed")

    def send(self, command: bytes) -> None:
        """Queue a command. The caller bounds :attr:`pending_bytes`."""
        self._out.append(command)
        self.pending_bytes += len(command)
        self._has_output.set()

    def send_message(self, subject: str, head: bytes, body: bytes) -> bool:
        """Queue a message; return whether it is within the server's limit."""
        size = len(_HEAD) + len(head) + len(_END_OF_HEAD)
        if size + len(body) > self.max_payload_bytes:
            return False
        line = b"HPUB %b %d %d\r\n" % (subject.encode("ascii"), size, size + len(body))
        self.send(b"".join((line, _HEAD, head, _END_OF_HEAD, body, b"\r\n")))
        return True

    def send_ping(self, number: int | None) -> None:
        """Queue a ping; its response passes the barrier *number*."""
        self._barriers.append(number)
        self.send(b"PING\r\n")

    async def wait_for_room(self, most: int) -> None:
        """Return when at most *most* bytes are pending, or the connection has ended."""
        while self.pending_bytes > most and not self.ended.done():
            self._room.clear()
            await self._room.wait()

    # Replaces methods of nats-py

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Replaces the discovery of servers. Refuses a server before a password is sent, if it does not offer what is needed."""
        if not initial_connection:
            return
        offers_tls = info.get("tls_required") is True
        if self._tls is not None and not offers_tls:
            raise Error("the server does not require TLS; set tls in its configuration")
        if self._tls is None and offers_tls:
            raise Error("the server requires TLS; set tls in the configuration of the link")
        if info.get("headers") is not True:
            raise Error("the server does not know headers; it must be version 2.2 or later")
        most = info.get("max_payload")
        self.max_payload_bytes = min(most, MAX_PAYLOAD_BYTES) if isinstance(most, int) else 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:  # noqa: ARG002
        """Replaces a queue for each subscription: messages stay in the order of the wire."""
        head = b""
        if headers is not None and headers.startswith(_HEAD) and headers.endswith(_END_OF_HEAD):
            head = headers[len(_HEAD) : -len(_END_OF_HEAD)]
        self._arrived.append(lambda: self._receive(subject, head, data))

    async def _process_err(self, err_msg: str) -> None:
        """Replaces the closing of the connection: the server closes it if it has to."""
        self._arrived.append(lambda: self._reject(printable(err_msg.strip("'"), MAX_WORDS)))

    async def _process_ping(self) -> None:
        """Replaces nats-py's own queue."""
        self.send(b"PONG\r\n")

    async def _process_pong(self) -> None:
        """Replaces futures, whose waiters run after messages that came later."""
        number = self._barriers.popleft() if self._barriers else None
        if number is not None:
            self._arrived.append(lambda: self._events.barrier_passed(number))

    async def _read_loop(self) -> None:
        """Replaces a loop that ends without notice if a server sends invalid bytes, and that reads TLS without a bound."""
        reader = self._prepared_reader()
        loop = asyncio.get_running_loop()
        try:
            while chunk := await reader.read(READ_BYTES):
                self._heard = loop.time()
                await self._parse(chunk)
                arrived, self._arrived = self._arrived, []
                for event in arrived:
                    event()
                await self._stall.end()
                self._heard = loop.time()
            self._end(self._last_error or "the server closed the connection")
        except (OSError, InvalidBytesError) as error:
            self._end(self._last_error or error_words(error))
        except Exception as error:  # a defect of the receiver of the events: the process must not continue without it
            if not self.ended.done():
                self.ended.set_exception(error)

    async def _ping_interval(self) -> None:
        """Replaces pings whose responses wait behind a long queue of messages: any byte shows that the server lives."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_SECONDS)
            if not self._stall.is_active and loop.time() - self._heard > SILENCE_SECONDS:
                self._end(f"the server has sent nothing for {SILENCE_SECONDS:g} s")
                return
            self.send_ping(None)

    async def _flusher(self) -> None:
        """Replaces nats-py's own queue: everything that waits is written at once, as far as the socket takes it."""
        writer = self._writer()
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
            taken.append(self._out.popleft())
            size += len(taken[-1])
        self.pending_bytes -= size
        return b"".join(taken)

    def _writer(self) -> asyncio.StreamWriter:
        """Return the writer of the open connection."""
        writer = self._transport._io_writer if self._transport is not None else None
        if writer is None:
            raise RuntimeError("the connection is not open")
        return writer

    def _prepared_reader(self) -> asyncio.StreamReader:
        """Return the reader of the open connection, whose buffer is bounded."""
        reader = self._transport._io_reader if self._transport is not None else None
        if reader is None:
            raise RuntimeError("the connection is not open")
        if self._tls is not None:
            # After start_tls nats-py does not connect the reader to its transport, so the reader could never pause it.
            transport = self._writer().transport
            transport.get_protocol().connection_made(transport)
        return reader

    async def _parse(self, chunk: bytes) -> None:
        """Parse the server's protocol. Raises InvalidBytesError."""
        try:
            await self._ps.parse(chunk)
        except Exception as error:  # nats-py raises anything for invalid bytes
            raise InvalidBytesError(f"the server sent invalid bytes: {error_words(error)}") from None
        in_payload = self._ps.state == AWAITING_MSG_PAYLOAD
        if in_payload and self._ps.needed > self.max_payload_bytes:
            raise InvalidBytesError(f"the server announced a message of {self._ps.needed} bytes; its maximum is {self.max_payload_bytes}")
        if not in_payload and len(self._ps.buf) > MAX_LINE_BYTES:
            raise InvalidBytesError(f"the server sent a line of more than {MAX_LINE_BYTES} bytes")

    def _receive(self, subject: bytes, head: bytes, body: bytes) -> None:
        """Deliver a message."""
        self._counters.messages_in += 1
        self._counters.bytes_in += len(head) + len(body)
        with contextlib.suppress(UnicodeDecodeError):  # no link publishes to such a subject
            self._events.received(subject.decode("ascii"), head, body)

    def _reject(self, reason: str) -> None:
        """Report an error of the server, which may be the reason why it closes the connection."""
        self._counters.rejected += 1
        self._last_error = f"the server said: {reason}"
        self._events.rejected(reason)

    def _end(self, reason: str) -> None:
        """Note why the connection has ended."""
        if not self.ended.done():
            self.ended.set_result(reason)
        self._room.set()
