"""The HTTP server: the metrics, for users that may scrape. Spec: sbus-metrics(8)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from aiohttp import web

from sbusd.metrics.collector import Collector
from sbusd.metrics.connections import Admission, ScraperConnection
from sbusd.metrics.exposition import negotiated
from sbusd.metrics.log_messages import DENIED, FAULT, PAUSED
from sbusd.protocol.printable import printable
from sbusd.systemd.event_loop import report_exhaustion
from sbusd.systemd.log_records import LimitedLog

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
