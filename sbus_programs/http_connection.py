"""One connection of an HTTP server of aiohttp, with its time limits and the reports of its errors."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from sbus.protocol.printable import printable

PEER_ERRORS = (ConnectionError, web.RequestPayloadError, HttpProcessingError)
"""Raised by aiohttp if a client disconnects within a message, or does not send HTTP."""


class LimitedConnection(web.RequestHandler):
    """A connection that no client can keep open without the consent of the server. A subclass admits it, and implements :meth:`note`."""

    __slots__ = ("_timeout",)

    def __init__(self, server: web.Server, *, idle_seconds: float, lingering_seconds: float = 1.0) -> None:
        """aiohttp closes it *idle_seconds* after a request, and reads the rest of a refused one for *lingering_seconds* at most."""
        options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": idle_seconds,
            "lingering_time": lingering_seconds,
            "auto_decompress": False,  # a small body of an unverified sender could expand to a huge one
        }
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._timeout: asyncio.TimerHandle | None = None

    def note(self, reason: str, *, is_of_peer: bool) -> None:
        """Log an error, *is_of_peer* if the client disconnected or does not send HTTP, else of this program."""
        raise NotImplementedError

    def refuse(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection that is not admitted, in :meth:`connection_made`."""
        self.force_close()
        transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end."""
        self.stop_waiting()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Respond to invalid HTTP or an internal error. aiohttp itself would log a traceback for each, without a rate limit."""
        response = self.error_response(status, exc, str(message or ""))
        response.force_close()
        return response

    def error_response(self, status: int, exc: BaseException | None, words: str) -> web.Response:
        """Log an error, and return the response to it."""
        self.note_error(exc, words)
        return web.Response(status=status, text="internal error\n" if status >= 500 else "invalid HTTP request\n")

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error that aiohttp would log with a traceback."""
        exc = kw.get("exc_info")
        self.note_error(exc if isinstance(exc, BaseException) else None, str(args[0]) if args else "")

    def note_error(self, exc: BaseException | None, words: str) -> None:
        """Log an error, in *words* if there is no exception."""
        reason = f"{type(exc).__name__}: {exc}" if exc is not None else words
        self.note(printable(reason, 200), is_of_peer=isinstance(exc, PEER_ERRORS))

    def wait(self, seconds: float) -> None:
        """Call :meth:`give_up` after *seconds*, unless :meth:`stop_waiting` or another wait comes before."""
        self.stop_waiting()
        self._timeout = asyncio.get_running_loop().call_later(seconds, self.give_up)

    def stop_waiting(self) -> None:
        """End the time limit."""
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def give_up(self) -> None:
        """Close the connection, because its time is over."""
        self.abort()

    def abort(self) -> None:
        """Close it at once, whatever it has to send."""
        self.stop_waiting()
        transport = self.transport  # force_close() of aiohttp closes it only when everything is sent, and forgets it
        self.force_close()
        if transport is not None:
            transport.abort()
