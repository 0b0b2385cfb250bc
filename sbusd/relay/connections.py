"""Connections of other hosts: how many there may be, and for how long one may say nothing.

A connection that is too many is closed at once. One on which no whole header arrives in time is closed too; aiohttp itself waits for
ever for the rest of a header.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sbusd.config.relay import RelaySettings
from sbusd.events import Event
from sbusd.relay.addresses import Parties
from sbusd.relay.journal import CROWDED, TOO_SLOW
from sbusd.relay.loopback import client_user

Refused = Callable[[Event, str, str, str], None]
"""Takes the event, the address, the reason, and the counter."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a connection. Duty: :meth:`Connections.leave` it once."""

    address: str
    party: str
    is_reserved: bool
    """It is one of those for configured peers."""


class Connections:
    """All connections of one listening socket."""

    def __init__(self, settings: RelaySettings, parties: Parties, refused: Refused) -> None:
        """*settings* say how many there may be, and how long each may wait."""
        self.idle_seconds = settings.idle_timeout
        self.header_seconds = settings.body_timeout
        self.asks_kernel = not settings.is_authenticated
        """Whether a connection is asked for its user."""
        self.refused = refused
        self._settings = settings
        self._parties = parties
        self._of: Counter[str] = Counter()
        self._total: Counter[bool] = Counter()
        self._is_closed = False

    def close(self) -> None:
        """Let nobody in any more: who was accepted just before the listening socket was closed comes after all others are sent away."""
        self._is_closed = True

    def enter(self, address: str) -> Place | None:
        """Return the place of a connection from *address*, None if it may not stay."""
        if self._is_closed:
            return None
        settings = self._settings
        party = self._parties.party(address)
        is_reserved = party.is_peer and self._total[True] < settings.peer_connections
        if self._of[party.name] >= settings.address_connections:
            reason = f"{party.name} has {settings.address_connections} already: address_connections in relay.toml"
        elif not is_reserved and self._total[False] >= settings.connections:
            reason = f"there are {settings.connections} already: connections in relay.toml"
        else:
            self._of[party.name] += 1
            self._total[is_reserved] += 1
            return Place(address, party.name, is_reserved)
        self.refused(CROWDED, address, reason, "connections-refused")
        return None

    def leave(self, place: Place) -> None:
        """Note that a connection has ended."""
        self._total[place.is_reserved] -= 1
        self._of[place.party] -= 1
        if not self._of[place.party]:
            del self._of[place.party]

    def late(self, address: str) -> None:
        """Tell that a connection is closed because its first request did not come."""
        self.refused(TOO_SLOW, address, "no whole request header in time", "connections-slow")

    def connection(self, server: web.Server, *, place: Place | None = None) -> Connection:
        """Return the protocol of a new connection to *server*; it has *place* if :meth:`enter` has let it in already."""
        # No body is inflated: the sender is not verified before it is read, and a few bytes can become very many.
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": self.idle_seconds,
            "lingering_time": 1.0,
            "auto_decompress": False,
        }
        return Connection(self, server, place, loop=asyncio.get_running_loop(), **options)


class Connection(web.RequestHandler):
    """One connection, watched."""

    __slots__ = ("_connections", "_patience", "_place", "_served", "user")

    def __init__(self, connections: Connections, server: web.Server, place: Place | None, **options: Any) -> None:
        super().__init__(server, **options)
        self.user: int | None = None
        """The user of this host who has connected, where other hosts are not authenticated and the kernel reports one."""
        self._connections = connections
        self._place = place
        self._served = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the connection stay, or close it."""
        super().connection_made(transport)
        if self._place is None:
            peer = transport.get_extra_info("peername")
            self._place = self._connections.enter(str(peer[0]) if peer else "?")
            if self._place is None:
                self.force_close()
                transport.close()
                return
        if self._connections.asks_kernel:
            # Now, and once: when the client closes its socket, the kernel forgets whose it was.
            self.user = client_user(transport.get_extra_info("socket"))
        self._await_request(self._connections.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note that it has ended."""
        if self._patience is not None:
            self._patience.cancel()
        if self._place is not None:
            self._connections.leave(self._place)
            self._place = None
        super().connection_lost(exc)

    def request_begins(self) -> None:
        """Note that a whole header has come."""
        self._served = True
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def request_ends(self) -> None:
        """Wait for the next."""
        if self._place is not None:
            self._await_request(self._connections.idle_seconds)

    def _await_request(self, seconds: float) -> None:
        """Close the connection unless a request begins within *seconds*."""
        self._patience = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Close it; an idle one that has been of use is no offence."""
        if not self._served and self._place is not None:
            self._connections.late(self._place.address)
        self.force_close()
        if self.transport is not None:
            self.transport.abort()
