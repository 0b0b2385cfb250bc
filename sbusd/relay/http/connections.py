"""Connections of remote hosts: their maximum number, and how long they may be idle.

An excess connection is closed at once. A connection that has never carried a message of a verified sender is closed to make room for a
new one of its address group. Otherwise a user without a key on a peer's host could keep the peer out. A connection without a complete
header in time is closed too, because aiohttp has no timeout for the rest of a header.
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
from sbusd.systemd.log_record import LogMessage

PEER_ERRORS = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""Raised by aiohttp if a client disconnects within a message, or does not send HTTP."""

RejectionReporter = Callable[[LogMessage, str, str, str], None]
"""Called with event, address, reason and name of the counter."""


def _nothing() -> None:
    """Do nothing."""


@dataclass(eq=False, slots=True)
class ConnectionSlot:
    """The slot of a connection. Duty: :meth:`ConnectionLimiter.release` it once."""

    address: str
    group: str
    is_reserved: bool
    """Whether it is one of the slots for configured peers."""
    close: Callable[[], None] = _nothing
    """Closes the connection."""
    is_left: bool = False
    """Whether the connection is closed, or its slot belongs to another one."""


class ConnectionLimiter:
    """Limits the connections of one listening socket."""

    def __init__(self, settings: RelaySettings, groups: AddressGroups, report_rejection: RejectionReporter) -> None:
        """*settings* contain the limits and timeouts."""
        self.idle_seconds = settings.idle_timeout
        self.header_seconds = settings.body_timeout
        self.asks_kernel = not settings.is_authenticated
        """Whether to ask the kernel for the local user of a connection."""
        self.report_rejection = report_rejection
        self._settings = settings
        self._groups = groups
        self._of: Counter[str] = Counter()
        self._total: Counter[bool] = Counter()
        self._unverified: dict[str, dict[ConnectionSlot, None]] = {}
        """Unverified connections of each group, oldest first."""
        self._is_closed = False

    def close(self) -> None:
        """Admit no further connections: one accepted just before the listening socket closed comes after all others are closed."""
        self._is_closed = True

    def admit(self, address: str) -> ConnectionSlot | None:
        """Return a slot for a connection from *address*, None if there is none."""
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
        """Release the slot of a closed connection; repeated calls have no effect."""
        if slot.is_left:
            return
        slot.is_left = True
        self.mark_verified(slot)
        self._total[slot.is_reserved] -= 1
        self._of[slot.group] -= 1
        if not self._of[slot.group]:
            del self._of[slot.group]

    def mark_verified(self, slot: ConnectionSlot) -> None:
        """Record that the sender is verified, so that the connection is not closed to make room."""
        unverified = self._unverified.get(slot.group, {})
        unverified.pop(slot, None)
        if not unverified:
            self._unverified.pop(slot.group, None)

    def _evict(self, group: str) -> None:
        """Close the oldest unverified connection of *group*, if there is one."""
        if oldest := next(iter(self._unverified.get(group, ())), None):
            self.release(oldest)
            oldest.close()
            most = self._settings.address_connections
            reason = f"{group} already has {most}, the limit of address_connections in relay.toml; closed its oldest unverified one"
            self.report_rejection(CROWDED, oldest.address, reason, "connections-evicted")

    def report_slow(self, address: str) -> None:
        """Report a connection that is closed because its first request did not arrive in time."""
        self.report_rejection(TOO_SLOW, address, "no complete request header in time", "connections-slow")

    def connection(self, server: web.Server, *, slot: ConnectionSlot | None = None) -> HttpConnection:
        """Return the protocol for a new connection to *server*; *slot* if :meth:`admit` was already called."""
        # Bodies are not decompressed: a small one of an unverified sender could expand to a huge one.
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": self.idle_seconds,
            "lingering_time": 1.0,
            "auto_decompress": False,
        }
        return HttpConnection(self, server, slot, loop=asyncio.get_running_loop(), **options)


class HttpConnection(web.RequestHandler):
    """One connection with limits and timeouts."""

    __slots__ = ("_limiter", "_patience", "_served", "_slot", "user")

    def __init__(self, connections: ConnectionLimiter, server: web.Server, slot: ConnectionSlot | None, **options: Any) -> None:
        super().__init__(server, **options)
        self.user: int | None = None
        """The local user that connected. None if remote hosts are authenticated, or the kernel reports no user."""
        self._limiter = connections
        self._slot = slot
        self._served = False
        self._patience: asyncio.TimerHandle | None = None

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
        """Respond to invalid HTTP or an internal error. aiohttp itself would log a traceback for each, without a rate limit."""
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
        """Report an error that aiohttp would log with a traceback."""
        exc = kw.get("exc_info")
        self._note(exc if isinstance(exc, BaseException) else None, str(args[0]) if args else "")

    def _note(self, exc: BaseException | None, words: str = "") -> None:
        """Report an error: of the client, if it disconnected or does not send HTTP, else of this relay."""
        reason = f"{type(exc).__name__}: {exc}" if exc is not None else words
        if isinstance(exc, PEER_ERRORS):
            self._limiter.report_rejection(UNWELCOME, self._address, printable(reason, 200), "connections-broken")
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
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def request_ends(self) -> None:
        """Start the timeout for the next request."""
        if self._slot is not None:
            self._await_request(self._limiter.idle_seconds)

    def _await_request(self, seconds: float) -> None:
        """Close the connection unless a request begins within *seconds*."""
        self._patience = asyncio.get_running_loop().call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Close the connection; report it unless it has carried a request before."""
        if not self._served and self._slot is not None:
            self._limiter.report_slow(self._slot.address)
        self._abort()

    def _abort(self) -> None:
        """Close it at once."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()
