"""Connections of browsers: only those of the gateway's own user and of root are served, and a limited number at once.

Every user of the machine can connect to a loopback address. The connections of others are closed before anything is read from them, so
they can neither guess secrets nor use up what the gateway has for its own user. The token is asked for nevertheless: the kernel knows
the user of a socket, but not which program has it now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from sbusd.protocol.printable import printable
from sbusd.socket_owner import client_user, is_trusted
from sbusd.systemd.log_records import LimitedLog
from sbusd.web.log_messages import FAULT, FULL, OTHER_USER, REJECTED

MAX_CONNECTIONS = 256
"""Connections that are served at once."""

HEADER_SECONDS = 30.0
"""Time limit for the first request of a connection."""

IDLE_SECONDS = 60.0
"""A connection without a request for that long is closed."""

PEER_ERRORS = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""Raised by aiohttp if a client disconnects within a message, or does not send HTTP."""


class Admission:
    """Counts the connections, and those of others that were closed. *charged* returns the user whose log records a uid uses."""

    def __init__(self, log: LimitedLog, charged: Callable[[int], int] = int) -> None:
        self.log = log
        self._charged = charged
        self.open = 0
        self.of_others = 0
        """Connections of other users since the start."""

    def admit(self, user: int | None) -> bool:
        """Return whether a connection of *user* is served; then :meth:`leave` must follow."""
        if not is_trusted(user):
            self.of_others += 1
            if user is None:
                self.log.record_limited(OTHER_USER, "", user="unknown")
            else:
                self.log.record_limited(OTHER_USER, str(self._charged(user)), user=str(user))
            return False
        if self.open >= MAX_CONNECTIONS:
            self.log.record_limited(FULL, "connections", reason=f"closed a connection: there are already {MAX_CONNECTIONS}")
            return False
        self.open += 1
        return True

    def leave(self) -> None:
        """Note the end of a connection."""
        self.open -= 1


class LoopbackConnection(web.RequestHandler):
    """One connection."""

    __slots__ = ("_admission", "_is_admitted", "_timeout")

    def __init__(self, admission: Admission, server: web.Server) -> None:
        options: dict[str, Any] = {"access_log": None, "keepalive_timeout": IDLE_SECONDS, "lingering_time": 1.0, "auto_decompress": False}
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._admission = admission
        self._is_admitted = False
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the connection, or close it."""
        super().connection_made(transport)
        if not self._admission.admit(client_user(transport.get_extra_info("socket"))):
            self.force_close()
            transport.close()
            return
        self._is_admitted = True
        self._timeout = asyncio.get_running_loop().call_later(HEADER_SECONDS, self._give_up)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end."""
        self.request_begins()
        if self._is_admitted:
            self._is_admitted = False
            self._admission.leave()
        super().connection_lost(exc)

    def request_begins(self) -> None:
        """End the wait for the first request: aiohttp has a time limit for the requests after it."""
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to invalid HTTP or an internal error. aiohttp itself would log a traceback for each, without a limit."""
        self._note(exc, str(message or ""))
        response = web.Response(status=status, text="internal error\n" if status >= 500 else "invalid HTTP request\n")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error that aiohttp would log with a traceback."""
        exc = kw.get("exc_info")
        self._note(exc if isinstance(exc, BaseException) else None, str(args[0]) if args else "")

    def _note(self, exc: BaseException | None, words: str) -> None:
        """Log an error: of the browser, if it disconnected or does not send HTTP, else of the gateway."""
        reason = printable(f"{type(exc).__name__}: {exc}" if exc is not None else words, 200)
        event = REJECTED if isinstance(exc, PEER_ERRORS) else FAULT
        self._admission.log.record_limited(event, "http", reason=reason)

    def _give_up(self) -> None:
        """Close the connection."""
        self._timeout = None
        transport = self.transport  # force_close() of aiohttp forgets it
        self.force_close()
        if transport is not None:
            transport.abort()
