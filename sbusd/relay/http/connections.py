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
from sbusd.relay.addresses import AddressGroups
from sbusd.relay.http.socket_owner import client_user
from sbusd.relay.log_messages import CROWDED, FAULT, TOO_SLOW, UNWELCOME
from sbusd.systemd.journal import Event

PEER_ERRORS = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""What aiohttp raises when a peer hangs up within a message, or sends one that is not HTTP."""

RejectionReporter = Callable[[Event, str, str, str], None]
"""Takes the event, the address, the reason, and the counter."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(eq=False, slots=True)
class ConnectionSlot:
    """The place of a connection. Duty: :meth:`ConnectionLimiter.release` it once."""

    address: str
    group: str
    is_reserved: bool
    """It is one of those for configured peers."""
    close: Callable[[], None] = _nothing
    """Closes the connection."""
    is_left: bool = False
    """The connection has ended, or its place is given to another one."""


class ConnectionLimiter:
    """All connections of one listening socket."""

    def __init__(self, settings: RelaySettings, groups: AddressGroups, report_rejection: RejectionReporter) -> None:
        """*settings* say how many there may be, and how long each may wait."""
        self.idle_seconds = settings.idle_timeout
        self.header_seconds = settings.body_timeout
        self.asks_kernel = not settings.is_authenticated
        """Whether a connection is asked for its user."""
        self.report_rejection = report_rejection
        self._settings = settings
        self._groups = groups
        self._of: Counter[str] = Counter()
        self._total: Counter[bool] = Counter()
        self._unverified: dict[str, dict[ConnectionSlot, None]] = {}
        """Those of each party, the oldest first."""
        self._is_closed = False

    def close(self) -> None:
        """Let nobody in any more: who was accepted just before the listening socket was closed comes after all others are sent away."""
        self._is_closed = True

    def admit(self, address: str) -> ConnectionSlot | None:
        """Return the place of a connection from *address*, None if it may not stay."""
        if self._is_closed:
            return None
        settings = self._settings
        group = self._groups.group(address)
        if self._of[group.name] >= settings.address_connections:
            self._evict(group.name)
        is_reserved = group.is_peer and self._total[True] < settings.peer_connections
        if self._of[group.name] >= settings.address_connections:
            reason = f"{group.name} already has {settings.address_connections}, the limit of address_connections in relay.toml"
        elif not is_reserved and self._total[False] >= settings.connections:
            reason = f"{settings.connections} are already open, the limit of connections in relay.toml"
        else:
            self._of[group.name] += 1
            self._total[is_reserved] += 1
            slot = ConnectionSlot(address, group.name, is_reserved)
            self._unverified.setdefault(group.name, {})[slot] = None
            return slot
        self.report_rejection(CROWDED, address, reason, "connections-refused")
        return None

    def release(self, slot: ConnectionSlot) -> None:
        """Note that a connection has ended; a second time does nothing."""
        if slot.is_left:
            return
        slot.is_left = True
        self.mark_verified(slot)
        self._total[slot.is_reserved] -= 1
        self._of[slot.group] -= 1
        if not self._of[slot.group]:
            del self._of[slot.group]

    def mark_verified(self, slot: ConnectionSlot) -> None:
        """Note that the sender at the other end is verified: the connection is not closed for another."""
        unverified = self._unverified.get(slot.group, {})
        unverified.pop(slot, None)
        if not unverified:
            self._unverified.pop(slot.group, None)

    def _evict(self, group: str) -> None:
        """Close the oldest connection of *group* that has never been verified, if there is one."""
        if oldest := next(iter(self._unverified.get(group, ())), None):
            self.release(oldest)
            oldest.close()
            most = self._settings.address_connections
            reason = f"{group} already has {most}, the limit of address_connections in relay.toml; closed its oldest unverified one"
            self.report_rejection(CROWDED, oldest.address, reason, "connections-evicted")

    def report_slow(self, address: str) -> None:
        """Tell that a connection is closed because its first request did not come."""
        self.report_rejection(TOO_SLOW, address, "no complete request header in time", "connections-slow")

    def connection(self, server: web.Server, *, slot: ConnectionSlot | None = None) -> HttpConnection:
        """Return the protocol of a new connection to *server*; it has *slot* if :meth:`admit` has let it in already."""
        # No body is inflated: the sender is not verified before it is read, and a few bytes can become very many.
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": self.idle_seconds,
            "lingering_time": 1.0,
            "auto_decompress": False,
        }
        return HttpConnection(self, server, slot, loop=asyncio.get_running_loop(), **options)


class HttpConnection(web.RequestHandler):
    """One connection, watched."""

    __slots__ = ("_limiter", "_patience", "_served", "_slot", "user")

    def __init__(self, connections: ConnectionLimiter, server: web.Server, slot: ConnectionSlot | None, **options: Any) -> None:
        super().__init__(server, **options)
        self.user: int | None = None
        """The user of this host who has connected, where other hosts are not authenticated and the kernel reports one."""
        self._limiter = connections
        self._slot = slot
        self._served = False
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the connection stay, or close it."""
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
            # Now, and once: when the client closes its socket, the kernel forgets whose it was.
            self.user = client_user(transport.get_extra_info("socket"))
        self._await_request(self._limiter.header_seconds)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note that it has ended."""
        if self._patience is not None:
            self._patience.cancel()
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
        """Answer what is not HTTP, or has met a mistake here; aiohttp itself logs a traceback for each, at the pace of any stranger."""
        if status >= 500:
            self._note(exc)
            words = "internal error in this relay; see its journal"
        else:
            first = str(message or exc).strip().partition("\n")[0]
            words = f"invalid HTTP request: {printable(first, 100)}"
            self._limiter.report_rejection(UNWELCOME, self._address, words, "headers-malformed")
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
            self._limiter.report_rejection(UNWELCOME, self._address, printable(reason, 200), "connections-broken")
        else:
            self._limiter.report_rejection(FAULT, self._address, printable(reason, 200), "http-faults")

    @property
    def _address(self) -> str:
        """The address of the peer."""
        return self._slot.address if self._slot is not None else "a closed connection"

    def mark_verified(self) -> None:
        """Note that a message of a verified sender has come."""
        if self._slot is not None:
            self._limiter.mark_verified(self._slot)

    def request_begins(self) -> None:
        """Note that a whole header has come."""
        self._served = True
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def request_ends(self) -> None:
        """Wait for the next."""
        if self._slot is not None:
            self._await_request(self._limiter.idle_seconds)

    def _await_request(self, seconds: float) -> None:
        """Close the connection unless a request begins within *seconds*."""
        self._patience = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Close it; an idle one that has been of use is no offence."""
        if not self._served and self._slot is not None:
            self._limiter.report_slow(self._slot.address)
        self._abort()

    def _abort(self) -> None:
        """Close it at once."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()
