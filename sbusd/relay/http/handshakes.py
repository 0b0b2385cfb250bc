"""TLS handshakes with limits and reports: asyncio's server drops failed handshakes silently and does not count unfinished ones."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from aiohttp import web

from sbusd.protocol.printable import printable
from sbusd.relay.http.connections import ConnectionLimiter, ConnectionSlot
from sbusd.relay.log_messages import STRANGER


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
        connection = self._limiter.connection(self._server, slot=slot)
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
        self._limiter.report_rejection(STRANGER, slot.address, f"TLS handshake failed: {printable(reason)}", "handshakes-failed")


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
    connections: ConnectionLimiter, server: web.Server, context: ssl.SSLContext | None, seconds: float
) -> Callable[[], asyncio.Protocol]:
    """Return the factory of protocols for new connections. With *context* they start with a TLS handshake of at most *seconds*."""
    if context is None:
        return lambda: connections.connection(server)
    return lambda: TlsHandshake(connections, server, context, seconds)
