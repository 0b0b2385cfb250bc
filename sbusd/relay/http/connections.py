"""Connections of other hosts: how many there may be, and for how long one may say nothing.

A connection that is too many is closed at once; one that has never brought a message of a verified sender is closed for a new one of its
party. Otherwise a user of a peer's host without a key could keep the peer out. One on which no whole header arrives in time is closed too;
aiohttp itself waits without limit for the rest of a header.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from sbusd.config.relay import RelaySettings
from sbusd.protocol.printable import printable
from sbusd.relay.addresses import Parties
from sbusd.relay.http.socket_owner import client_user
from sbusd.relay.log_messages import CROWDED, FAULT, TOO_SLOW, UNWELCOME
from sbusd.systemd.log_record import LogMessage

PEER_ERRORS = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""What aiohttp raises when a peer hangs up within a message, or sends one that is not HTTP."""

Refused = Callable[[LogMessage, str, str, str], None]
"""Takes the event, the address, the reason, and the counter."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(eq=False, slots=True)
class Place:
    """The place of a connection. Duty: :meth:`Connections.leave` it once."""

    address: str
    party: str
    is_reserved: bool
    """It is one of those for configured peers."""
    close: Callable[[], None] = _nothing
    """Closes the connection."""
    is_left: bool = False
    """The connection has ended, or its place is given to another one."""


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
        self._unverified: dict[str, dict[Place, None]] = {}
        """Those of each party, the oldest first."""
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
        if self._of[party.name] >= settings.address_connections:
            self._evict(party.name)
        is_reserved = party.is_peer and self._total[True] < settings.peer_connections
        if self._of[party.name] >= settings.address_connections:
            reason = f"{party.name} already has {settings.address_connections}, the limit of address_connections in relay.toml"
        elif not is_reserved and self._total[False] >= settings.connections:
            reason = f"{settings.connections} are already open, the limit of connections in relay.toml"
        else:
            self._of[party.name] += 1
            self._total[is_reserved] += 1
            place = Place(address, party.name, is_reserved)
            self._unverified.setdefault(party.name, {})[place] = None
            return place
        self.refused(CROWDED, address, reason, "connections-refused")
        return None

    def leave(self, place: Place) -> None:
        """Note that a connection has ended; a second time does nothing."""
        if place.is_left:
            return
        place.is_left = True
        self.verified(place)
        self._total[place.is_reserved] -= 1
        self._of[place.party] -= 1
        if not self._of[place.party]:
            del self._of[place.party]

    def verified(self, place: Place) -> None:
        """Note that the sender at the other end is verified: the connection is not closed for another."""
        unverified = self._unverified.get(place.party, {})
        unverified.pop(place, None)
        if not unverified:
            self._unverified.pop(place.party, None)

    def _evict(self, party: str) -> None:
        """Close the oldest connection of *party* that has never been verified, if there is one."""
        if oldest := next(iter(self._unverified.get(party, ())), None):
            self.leave(oldest)
            oldest.close()
            most = self._settings.address_connections
            reason = f"{party} already has {most}, the limit of address_connections in relay.toml; closed its oldest unverified one"
            self.refused(CROWDED, oldest.address, reason, "connections-evicted")

    def late(self, address: str) -> None:
        """Tell that a connection is closed because its first request did not come."""
        self.refused(TOO_SLOW, address, "no complete request header in time", "connections-slow")

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
        self._place.close = self._abort
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

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is not HTTP, or has met a mistake here; aiohttp itself logs a traceback for each, at the pace of any stranger."""
        if status >= 500:
            self._note(exc)
            words = "internal error in this relay; see its journal"
        else:
            first = str(message or exc).strip().partition("\n")[0]
            words = f"invalid HTTP request: {printable(first, 100)}"
            self._connections.refused(UNWELCOME, self._address, words, "headers-malformed")
        body = json.dumps({"error": words}).encode()
        response = web.Response(status=status, body=body, content_type="application/json")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Note what aiohttp would log with a traceback."""
        exc = kw.get("exc_info")
        self._note(exc if isinstance(exc, BaseException) else None, str(args[0]) if args else "")

    def _note(self, exc: BaseException | None, words: str = "") -> None:
        """Report an error that is not handled elsewhere: the peer's, if it has hung up or does not speak HTTP, else this relay's."""
        reason = f"{type(exc).__name__}: {exc}" if exc is not None else words
        if isinstance(exc, PEER_ERRORS):
            self._connections.refused(UNWELCOME, self._address, printable(reason, 200), "connections-broken")
        else:
            self._connections.refused(FAULT, self._address, printable(reason, 200), "http-faults")

    @property
    def _address(self) -> str:
        """The address of the peer."""
        return self._place.address if self._place is not None else "a closed connection"

    def verified(self) -> None:
        """Note that a message of a verified sender has come."""
        if self._place is not None:
            self._connections.verified(self._place)

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
        self._abort()

    def _abort(self) -> None:
        """Close it at once."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()
