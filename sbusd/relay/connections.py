"""Connections of other hosts: how many there may be, and for how long one may say nothing.

A connection that is too many is closed at once. One on which no whole header arrives in time is closed too; aiohttp itself waits for
ever for the rest of a header.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import web

from sbusd.events import Event
from sbusd.relay.journal import CROWDED, TOO_SLOW

Refused = Callable[[Event, str, str, str], None]
"""Takes the event, the address, the reason, and the counter."""


class Connections:
    """All connections of one listening socket."""

    def __init__(self, most: int, most_of_address: int, idle_seconds: float, header_seconds: float, refused: Refused) -> None:
        """*most*, *most_of_address*: how many; *idle_seconds* for one without a request, *header_seconds* for the first."""
        self.idle_seconds = idle_seconds
        self.header_seconds = header_seconds
        self._most = most
        self._most_of_address = most_of_address
        self.refused = refused
        self._of: Counter[str] = Counter()
        self._is_closed = False

    def close(self) -> None:
        """Let nobody in any more: who was accepted just before the listening socket was closed comes after all others are sent away."""
        self._is_closed = True

    def enter(self, address: str) -> bool:
        """Return whether a connection from *address* may stay."""
        if self._is_closed:
            return False
        reason = ""
        if self._of.total() >= self._most:
            reason = f"there are {self._most} already: connections in relay.toml"
        elif self._of[address] >= self._most_of_address:
            reason = f"it has {self._most_of_address} already: address_connections in relay.toml"
        if reason:
            self.refused(CROWDED, address, reason, "connections-refused")
            return False
        self._of[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Note that a connection has ended that had entered."""
        self._of[address] -= 1
        if not self._of[address]:
            del self._of[address]

    def late(self, address: str) -> None:
        """Tell that a connection is closed because its first request did not come."""
        self.refused(TOO_SLOW, address, "no whole request header in time", "connections-slow")

    def connection(self, server: web.Server, *, entered: str = "") -> Connection:
        """Return the protocol of a new connection to *server*; *entered* is its address if :meth:`enter` has let it in."""
        options: dict[str, Any] = {"access_log": None, "keepalive_timeout": self.idle_seconds, "lingering_time": 1.0}
        return Connection(self, server, entered, loop=asyncio.get_running_loop(), **options)


class Connection(web.RequestHandler):
    """One connection, watched."""

    __slots__ = ("_address", "_connections", "_patience", "_served")

    def __init__(self, connections: Connections, server: web.Server, entered: str, **options: Any) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self._address = entered
        self._served = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the connection stay, or close it."""
        super().connection_made(transport)
        if not self._address:
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if peer else "?"
            if not self._connections.enter(address):
                self.force_close()
                transport.close()
                return
            self._address = address
        self._await_request(self._connections.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note that it has ended."""
        if self._patience is not None:
            self._patience.cancel()
        if self._address:
            self._connections.leave(self._address)
            self._address = ""
        super().connection_lost(exc)

    def request_begins(self) -> None:
        """Note that a whole header has come."""
        self._served = True
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def request_ends(self) -> None:
        """Wait for the next."""
        if self._address:
            self._await_request(self._connections.idle_seconds)

    def _await_request(self, seconds: float) -> None:
        """Close the connection unless a request begins within *seconds*."""
        self._patience = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Close it; an idle one that has been of use is no offence."""
        if not self._served:
            self._connections.late(self._address)
        self.force_close()
        if self.transport is not None:
            self.transport.abort()
