"""Connections of remote hosts: their TLS handshake, how long they may be idle, and the reports of their errors.

asyncio's server drops failed handshakes silently and does not count unfinished ones. A connection without a complete header in time is
closed, because aiohttp has no timeout for the rest of a header.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable

from aiohttp import web

from sbus.protocol.printable import printable
from sbus_programs.http_connection import LimitedConnection
from sbus_programs.socket_owner import client_user
from sbus_services.relay.http.limits import ConnectionLimiter, ConnectionSlot
from sbus_services.relay.log_messages import AUTHENTICATION_FAILED, FAULT, REJECTED


class HttpConnection(LimitedConnection):
    """One connection with limits and timeouts."""

    __slots__ = ("_limiter", "_served", "_slot", "user")

    def __init__(self, connections: ConnectionLimiter, server: web.Server, slot: ConnectionSlot | None = None) -> None:
        super().__init__(server, idle_seconds=connections.idle_seconds)
        self.user: int | None = None
        """The local user that connected. None if remote hosts are authenticated, or the kernel reports no user."""
        self._limiter = connections
        self._slot = slot
        self._served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or close it."""
        super().connection_made(transport)
        if self._slot is None:
            peer = transport.get_extra_info("peername")
            self._slot = self._limiter.admit(str(peer[0]) if peer else "?")
            if self._slot is None:
                self.refuse(transport)
                return
        self._slot.close = self.abort
        if self._limiter.asks_kernel:
            # Ask now: the kernel forgets the user when the client closes its socket.
            self.user = client_user(transport.get_extra_info("socket"))
        self.wait(self._limiter.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release the slot."""
        if self._slot is not None:
            self._limiter.release(self._slot)
            self._slot = None
        super().connection_lost(exc)

    def error_response(self, status: int, exc: BaseException | None, words: str) -> web.Response:
        """Log an error of this relay, or report a rejected request; return the response, which has the reason."""
        if status >= 500:
            self.note_error(exc, "")
            reason = "internal error in this relay; see its journal"
        else:
            first = (words or str(exc)).strip().partition("\n")[0]
            reason = f"invalid HTTP request: {printable(first, 100)}"
            self._limiter.report_rejection(REJECTED, self._address, reason, "headers-malformed")
        return web.Response(status=status, body=json.dumps({"error": reason}).encode(), content_type="application/json")

    def note(self, reason: str, *, is_of_peer: bool) -> None:
        """Report an error of the client or of this relay."""
        event, counter = (REJECTED, "connections-broken") if is_of_peer else (FAULT, "http-faults")
        self._limiter.report_rejection(event, self._address, reason, counter)

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
        self.stop_waiting()

    def request_ends(self) -> None:
        """Start the timeout for the next request."""
        if self._slot is not None:
            self.wait(self._limiter.idle_seconds)

    def give_up(self) -> None:
        """Close the connection; report it unless it has carried a request before."""
        if not self._served and self._slot is not None:
            self._limiter.report_slow(self._slot.address)
        super().give_up()


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
        connection = HttpConnection(self._limiter, self._server, slot)
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
        return HttpConnection(connections, server) if current is None else TlsHandshake(connections, server, current, seconds)

    return protocol
