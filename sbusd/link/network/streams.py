"""The streams of a connection to another host or server."""

from __future__ import annotations

import asyncio
from typing import Any


class _Protocol(asyncio.StreamReaderProtocol):
    """Has its transport also if the attempt to connect is cancelled."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the *transport*."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport
        super().connection_made(transport)


async def open_streams(*address: Any, limit: int = 1 << 16, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as :func:`asyncio.open_connection`, with the same arguments, but leave no transport if the attempt is cancelled.

    If it is cancelled when TLS is established, and the task has not seen that yet, asyncio says goodbye and waits for the other side.
    That may take long, and a loop that ends has no time for it.

    Raises what :meth:`asyncio.loop.create_connection` raises.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = _Protocol(reader, loop=loop)
    try:
        transport, _ = await loop.create_connection(lambda: protocol, *address, **options)
    except BaseException:
        if protocol.transport is not None:
            protocol.transport.abort()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
