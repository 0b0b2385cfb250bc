"""Connections of remote hosts: their TLS handshake, how long they may be idle, and the reports of their errors.

asyncio's server drops failed handshakes silently and does not count unfinished ones. A connection without a complete header in time is
closed, because aiohttp has no timeout for the rest of a header.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from sbusd.protocol.printable import printable
from sbusd.relay.http.limits import ConnectionLimiter, ConnectionSlot
from sbusd.relay.log_messages import AUTHENTICATION_FAILED, FAULT, REJECTED
from sbusd.socket_owner import client_user

PEER_ERRORS = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""Raised by aiohttp if a client disconnects within a message, or does not send HTTP."""


class HttpConnection(web.RequestHandler):
    """One connection with limits and timeouts."""

    __slots__ = ("_limiter", "_served", "_slot", "_timeout", "user")

    def __init__(self, connections: ConnectionLimiter, server: web.Server, slot: ConnectionSlot | None, **options: Any) -> None:
        super().__init__(server, **options)
        self.user: int | None = None
        """The local user that connected. None if remote hosts are authenticated, or the kernel reports no user."""
        self._limiter = connections
        self._slot = slot
        self._served = False
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or close it."""
        super().connection_made(transport)
        if self._slot is None:
            peer = transport.get_extra_info("peername")
            self._slot = self._limiter.admit(str(peer[0]) if peer else "?")
            if self._slot is None:
                self.force_close()
                transport.close()
                return
        self._slot.close = self._abort
        if self._limiter.asks_kernel:
            # Ask now: the kernel forgets the user when the client closes its socket.
            self.user = client_user(transport.get_extra_info("socket"))
        self._await_request(self._limiter.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the slot."""
        if self._timeout is not None:
            self._timeout.cancel()
        if self._slot is not None:
            self._limiter.release(self._slot)
            self._slot = None
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to invalid HTTP or an internal error. aiohttp itself would log a traceback for each, without a rate limit."""
        if status >= 500:
            self._note(exc)
            words = "internal error in this relay; see its journal"
        else:
            first = str(message or exc).strip().partition("\n")[0]
            words = f"invalid HTTP request: {printable(first, 100)}"
            self._limiter.report_rejection(REJECTED, self._address, words, "headers-malformed")
        body = json.dumps({"error": words}).encode()
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Report an error that aiohttp would log with a traceback."""
        exc = kw.get("exc_info")
        self._note(exc if isinstance(exc, BaseException) else None, str(args[0]) if args else "")

    def _note(self, exc: BaseException | None, words: str = "") -> None:
        """Report an error: of the client, if it disconnected or does not send HTTP, else of this relay."""
        reason = f"{type(exc).__name__}: {exc}" if exc is not None else words
        if isinstance(exc, PEER_ERRORS):
            self._limiter.report_rejection(REJECTED, self._address, printable(reason, 200), "connections-broken")
        else:
            self._limiter.report_rejection(FAULT, self._address, printable(reason, 200), "http-faults")

    @property
    def _address(self) -> str:
        """The address of the client."""
        return self._slot.address if self._slot is not None else "a closed connection"

    def mark_verified(self) -> None:
        """Record that a message of a verified sender has arrived."""
        if self._slot is not None:
            self._limiter.mark_verified(self._slot)

    def request_begins(self) -> None:
        """Record that a complete header has arrived."""
        self._served = True
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def request_ends(self) -> None:
        """Start the timeout for the next request."""
        if self._slot is not None:
            self._await_request(self._limiter.idle_seconds)

    def _await_request(self, seconds: float) -> None:
        """Close the connection unless a request begins within *seconds*."""
        self._timeout = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Close the connection; report it unless it has carried a request before."""
        if not self._served and self._slot is not None:
            self._limiter.report_slow(self._slot.address)
        self._abort()

    def _abort(self) -> None:
        """Close it at once, whatever it has to send."""
        transport = self.transport  # force_close() of aiohttp closes it only when everything is sent, and forgets it
        self.force_close()
        if transport is not None:
            transport.abort()


def http_connection(limiter: ConnectionLimiter, server: web.Server, slot: ConnectionSlot | None = None) -> HttpConnection:
    """Return the protocol for a new connection to *server*; *slot* if :meth:`ConnectionLimiter.admit` was already called."""
    # Bodies are not decompressed: a small one of an unverified sender could expand to a huge one.
    options: dict[str, Any] = {
        "access_log": None,
        "keepalive_timeout": limiter.idle_seconds,
        "lingering_time": 1.0,
        "auto_decompress": False,
    }
    return HttpConnection(limiter, server, slot, loop=asyncio.get_running_loop(), **options)


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake is complete; then an HTTP connection takes over."""

    def __init__(self, connections: ConnectionLimiter, server: web.Server, context: ssl.SSLContext, seconds: float) -> None:
        """*seconds* is the timeout of the handshake."""
        self._limiter = connections
        self._server = server
        self._context = context
        self._seconds = seconds
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake if the connection is admitted."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a listening socket has streams")
        address = str(transport.get_extra_info("peername")[0])
        slot = self._limiter.admit(address)
        if slot is None:
            transport.abort()
            return
        slot.close = transport.abort
        transport.pause_reading()  # until the handshake reads
        self._task = asyncio.get_running_loop().create_task(self._shake(transport, slot))

    async def _shake(self, transport: asyncio.Transport, slot: ConnectionSlot) -> None:
        """Perform the handshake, then pass the connection on."""
        early = EarlyData()
        loop = asyncio.get_running_loop()
        try:
            secure = await loop.start_tls(
                transport, early, self._context, server_side=True, ssl_handshake_timeout=self._seconds, ssl_shutdown_timeout=1.0
            )
        except OSError as error:
            self._fail(slot, error)
            transport.abort()
            return
        if secure is None or early.is_lost or slot.is_left:
            self._limiter.release(slot)
            return
        connection = http_connection(self._limiter, self._server, slot)
        secure.set_protocol(connection)
        connection.connection_made(secure)
        for data in early.data:
            connection.data_received(data)

    def _fail(self, slot: ConnectionSlot, error: OSError) -> None:
        """Report a failed handshake and its reason."""
        if slot.is_left:
            return  # closed to make room, and already reported
        self._limiter.release(slot)
        reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
        self._limiter.report_rejection(
            AUTHENTICATION_FAILED, slot.address, f"TLS handshake failed: {printable(reason)}", "handshakes-failed"
        )


class EarlyData(asyncio.Protocol):
    """Stores data that arrives immediately after the handshake."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        """Store *data*."""
        self.data.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection."""
        self.is_lost = True
        self.data.clear()
        super().connection_lost(exc)


def protocol_factory(
    connections: ConnectionLimiter, server: web.Server, context: Callable[[], ssl.SSLContext | None], seconds: float
) -> Callable[[], asyncio.Protocol]:
    """Return the factory of protocols for new connections. If *context* returns one, they start with a TLS handshake of at most
    *seconds*.
    """

    def protocol() -> asyncio.Protocol:
        current = context()
        return http_connection(connections, server) if current is None else TlsHandshake(connections, server, current, seconds)

    return protocol
