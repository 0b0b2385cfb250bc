"""The HTTP server: metrics for users that may scrape, on connections that no slow client can keep open. Spec: sbus-metrics(8).

A limit is that of the user who is charged for a uid, subuid(5). The right to scrape is that of the uid itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import struct
from collections import Counter
from collections.abc import Sequence

from aiohttp import web

from sbus.asyncio.look_ups import in_thread
from sbus.protocol.printable import printable
from sbus_programs.config.users import ChargedUsers
from sbus_programs.http_connection import LimitedConnection
from sbus_programs.socket_owner import OVERFLOW_UID, client_user
from sbus_programs.systemd.event_loop import report_exhaustion
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.metrics.collector import Collector
from sbus_services.metrics.exposition import negotiated
from sbus_services.metrics.log_messages import DENIED, FAULT, FULL, PAUSED, REJECTED

MAX_CONNECTIONS = 64
"""Connections of the users that may scrape."""

MAX_OTHERS = 16
"""Connections of all other users together: these only learn that they may not scrape."""

MAX_PER_USER = 32
"""Connections of one user."""

_NAMES_SECONDS = 10.0
"""Pause between look-ups of the users: their packages can be installed later."""

_PEER = struct.Struct("=iII")


class Admission:
    """Counts the connections of each user that is *charged*. *users* are the names or numbers of those with the right to scrape."""

    def __init__(self, users: Sequence[str], charged: ChargedUsers) -> None:
        self._names = [user for user in users if not _is_number(user)]
        self._charged = charged
        self._always = frozenset({0, os.geteuid(), *(int(user) for user in users if _is_number(user))})
        self._known = self._always
        self._open: dict[bool, Counter[int | None]] = {True: Counter(), False: Counter()}
        """Connections by charged user, of those that may scrape and of others."""

    async def look_up(self) -> None:
        """Look up the names of the users, in a thread: a directory service can be slow, and no new connection waits for it.
        Until it responds, those that were found before may scrape.

        Raises:
            RuntimeError, MemoryError: no thread is left.
        """
        if self._names:
            self._known = self._always | await in_thread(_ids, self._names)

    async def run(self) -> None:
        """Look up the names again and again, until cancelled."""
        while self._names:
            await asyncio.sleep(_NAMES_SECONDS)
            with contextlib.suppress(RuntimeError, MemoryError):  # those found before may still scrape
                await self.look_up()

    def may_scrape(self, user: int | None) -> bool:
        """Return whether *user* may read the metrics; an unknown user may not."""
        if user is None or user == OVERFLOW_UID:
            return False
        return user in self._known

    def charged_for(self, user: int | None) -> int | None:
        """Return the user that is charged for *user*; None if that is unknown. Keep it: another one can be charged for the next."""
        return None if user is None else self._charged.of(user)

    def enter(self, charged: int | None, *, may_scrape: bool) -> bool:
        """Return whether one more connection is served that *charged* is charged for.

        Then :meth:`leave` must follow, with the same arguments.
        """
        open_by_user = self._open[may_scrape]
        total, own = (MAX_CONNECTIONS, MAX_PER_USER) if may_scrape else (MAX_OTHERS, 1)
        if open_by_user.total() >= total or open_by_user[charged] >= own:
            return False
        open_by_user[charged] += 1
        return True

    def leave(self, charged: int | None, *, may_scrape: bool) -> None:
        """Note the end of a connection."""
        self._open[may_scrape] -= Counter([charged])


def user_of(connection: socket.socket) -> int | None:
    """Return the user at the other end of a Unix or loopback connection, as the kernel reports it; None if it does not."""
    if connection.family != socket.AF_UNIX:
        return client_user(connection)
    try:
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:
        return None
    return int(user)


def _is_number(user: str) -> bool:
    """Return whether *user* is a number and not a name."""
    return user.isascii() and user.isdecimal()


def _ids(names: Sequence[str]) -> frozenset[int]:
    """Return the numbers of those users that exist."""
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return frozenset(found)


REQUEST_SECONDS = 10.0
"""Time limit for each request, from the first byte to the last of its response; the wait for the bus is a part of it."""

UNSENT_SECONDS = 0.05
"""Interval of looking whether the client has read its response. Nearly always it is in the buffers of the kernel at once."""

IDLE_SECONDS = 150.0
"""A connection without a request for that long is closed. Prometheus scrapes once a minute by default."""

MAX_REQUEST_BYTES = 32 << 10
"""Maximum size of a request, with its header."""


class ScraperConnection(LimitedConnection):
    """One connection. ``user`` is the uid of the client, None if it is unknown, and ``charged`` the user that is charged for it;
    ``may_scrape`` says whether it may read the metrics.
    """

    __slots__ = ("_admission", "_is_admitted", "_is_busy", "_log", "_unhandled", "charged", "may_scrape", "user")

    def __init__(self, admission: Admission, log: LimitedLog, server: web.Server) -> None:
        super().__init__(server, idle_seconds=IDLE_SECONDS, lingering_seconds=0.0)
        self.user: int | None = None
        self.charged: int | None = None
        self.may_scrape = False
        self._admission = admission
        self._log = log
        self._is_admitted = False
        self._is_busy = False
        self._unhandled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, or close it."""
        super().connection_made(transport)
        self.user = user_of(transport.get_extra_info("socket"))
        self.may_scrape = self._admission.may_scrape(self.user)
        self.charged = self._admission.charged_for(self.user)
        if not self._admission.enter(self.charged, may_scrape=self.may_scrape):
            self._log.record_limited(FULL, str(self.charged), user="unknown" if self.user is None else str(self.user))
            self.refuse(transport)
            return
        self._is_admitted = True
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, unless the request is too long."""
        self._unhandled += len(data)
        if self._unhandled > MAX_REQUEST_BYTES:
            self._log.record_limited(REJECTED, "size", reason=f"a request was longer than {MAX_REQUEST_BYTES} bytes")
            self.abort()
            return
        if not self._is_busy:
            self._begin()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end."""
        if self._is_admitted:
            self._is_admitted = False
            self._admission.leave(self.charged, may_scrape=self.may_scrape)
        super().connection_lost(exc)

    def request_begins(self) -> None:
        """Note that a request is handled: it may have come together with the one before it."""
        if not self._is_busy:
            self._begin()

    async def request_done(self) -> None:
        """Wait until the client has taken the response, or the time limit of the request is over."""
        # aiohttp waits for that only in the middle of a response, and would make the next one.
        while isinstance(self.transport, asyncio.WriteTransport) and self.transport.get_write_buffer_size() > 0:
            await asyncio.sleep(UNSENT_SECONDS)
        self._unhandled = 0
        self._is_busy = False
        self.stop_waiting()

    def note(self, reason: str, *, is_of_peer: bool) -> None:
        """Log an error of the client or of the program."""
        self._log.record_limited(REJECTED if is_of_peer else FAULT, "http", reason=reason)

    def _begin(self) -> None:
        """Begin the time limit of a request."""
        self._is_busy = True
        self.wait(REQUEST_SECONDS)


PATH = "/metrics"

CLOSE_SECONDS = 2.0
"""Time limit for requests that run when the program stops."""

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class MetricsServer:
    """Serves scrapers on listening sockets."""

    def __init__(self, collector: Collector, admission: Admission, log: LimitedLog) -> None:
        self.scrapes = 0
        """Responses with metrics since the start."""
        self.used_at = asyncio.get_running_loop().time()
        """The time of the last request, by the clock of the loop."""
        self._collector = collector
        self._admission = admission
        self._log = log
        self._running = 0
        self._server = web.Server(self._serve)
        self._listeners: list[asyncio.Server] = []

    @property
    def is_busy(self) -> bool:
        """Whether a request runs."""
        return self._running > 0

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to serve on listening *sockets*."""
        loop = asyncio.get_running_loop()
        report_exhaustion(lambda reason: self._log.record_limited(PAUSED, reason, reason=reason))

        def connected() -> ScraperConnection:
            return ScraperConnection(self._admission, self._log, self._server)

        for each in sockets:
            # Not create_unix_server(), which since Python 3.13 removes the path of the socket, even that of systemd.
            self._listeners.append(await loop.create_server(connected, sock=each))

    async def close(self) -> None:
        """Stop listening, and end all connections. Connections that are not accepted yet stay with systemd."""
        for each in self._listeners:
            each.close()
        await self._server.shutdown(CLOSE_SECONDS)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request, whatever happens."""
        self._running += 1
        connection = request.protocol
        if isinstance(connection, ScraperConnection):
            connection.request_begins()
        try:
            response = await self._respond(request)
            # Sent here and not by aiohttp, so that the end is known.
            await response.prepare(request)
            await response.write_eof()
            if isinstance(connection, ScraperConnection):
                await connection.request_done()
        finally:
            self._running -= 1
        return response

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response to a request."""
        connection = request.protocol
        if not isinstance(connection, ScraperConnection) or not connection.may_scrape:
            user, charged = getattr(connection, "user", None), getattr(connection, "charged", None)
            self._log.record_limited(DENIED, str(charged), user="unknown" if user is None else str(user))
            words = "this user may not read the metrics; an administrator can add it to users in /etc/sbus/metrics.toml"
            return self._text(403, words, closes=True)
        self.used_at = asyncio.get_running_loop().time()
        if request.method not in {"GET", "HEAD"}:
            return self._text(405, "method not allowed; use GET")
        if request.path != PATH:
            return self._text(404, f"not found; the metrics are at {PATH}")
        try:
            families = await self._collector.collect()
            body, kind = negotiated(request.headers.get("Accept", ""), families)
        except Exception as mistake:  # the log gets the error, the client does not
            self._log.record_limited(FAULT, "server", reason=printable(f"{type(mistake).__name__}: {mistake}", 200))
            return self._text(500, "internal error; see the log of sbus-metrics")
        self.scrapes += 1
        return web.Response(body=body, headers={**_HEADERS, "Content-Type": kind})

    def _text(self, status: int, words: str, *, closes: bool = False) -> web.Response:
        """Return a response with one line of text; *closes*: the connection ends after it."""
        response = web.Response(status=status, text=f"{words}\n", headers=_HEADERS)
        if closes:
            response.force_close()
        return response
