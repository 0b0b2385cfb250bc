"""Connections of scrapers. No client can keep one open by a slow request, a long one, or a response that is not read."""

from __future__ import annotations

import asyncio

from aiohttp import web

from sbusd.http_connection import LimitedConnection
from sbusd.metrics.admission import Admission, user_of
from sbusd.metrics.log_messages import FAULT, FULL, REJECTED
from sbusd.systemd.limited_log import LimitedLog

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
