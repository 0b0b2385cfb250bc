"""The HTTP server: the link, the files of the page, and WebSockets. Spec: sbus-web(8).

Nothing is served without a login, and every request is checked for its host and origin first: see ``request_checks``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from importlib import resources

from aiohttp import WSCloseCode, web

from sbusd.client import NoBus
from sbusd.protocol.printable import printable
from sbusd.systemd.event_loop import report_exhaustion
from sbusd.systemd.log_records import LimitedLog
from sbusd.web.connections import Names
from sbusd.web.frames import MAX_FRAME_BYTES
from sbusd.web.log_messages import FAULT, FULL, LOGGED_IN, NO_BUS, REJECTED, SESSION_ENDED, WRONG_TOKEN
from sbusd.web.logins import FAILURE_SECONDS, Logins, TooManyFailuresError
from sbusd.web.loopback import Admission, LoopbackConnection
from sbusd.web.request_checks import (
    WEBSOCKET_PROTOCOL,
    ListenAddress,
    RejectedError,
    check_key,
    check_login,
    check_origin,
    response_headers,
)
from sbusd.web.session import SessionSettings, WebSession

HEARTBEAT_SECONDS = 30.0
"""Interval of WebSocket pings. A browser that does not respond within half of it is disconnected."""

CLOSE_SECONDS = 2.0
"""Time limit for the browser's part of the end of a WebSocket."""

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

_SESSION_PATH = "/session"


def page_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the content and media type of each file of the page, by path."""
    found = {}
    for file in (resources.files(__package__) / "static").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            found["/" if file.name == "index.html" else f"/{file.name}"] = (file.read_bytes(), kind)
    return found


class WebServer:
    """Serves browsers on one address. *linked* gets each new link: the first, and another one whenever one was used. *charged* returns
    the user whose log records a uid uses."""

    def __init__(
        self,
        settings: SessionSettings,
        log: LimitedLog,
        *,
        max_sessions: int,
        linked: Callable[[str], None],
        charged: Callable[[int], int] = int,
    ) -> None:
        self.logins = Logins()
        self.admission = Admission(log, charged)
        self._settings = settings
        self._log = log
        self._max_sessions = max_sessions
        self._linked = linked
        self._files = page_files()
        self._names = Names()
        self._sessions: dict[WebSession, asyncio.Transport | None] = {}
        self._address = ListenAddress("127.0.0.1", 0)
        self._headers: Mapping[str, str] = {}
        self._server = web.Server(self._serve)
        self._listener: asyncio.Server | None = None

    @property
    def address(self) -> ListenAddress:
        """The address with the port that the kernel has chosen."""
        return self._address

    @property
    def session_count(self) -> int:
        """The open sessions."""
        return len(self._sessions)

    async def listen(self, address: ListenAddress) -> None:
        """Begin to serve on *address*. Raises OSError."""
        loop = asyncio.get_running_loop()
        report_exhaustion(lambda reason: self._log.record_limited(FULL, "accept", reason=reason))
        self._listener = await loop.create_server(lambda: LoopbackConnection(self.admission, self._server), address.host, address.port)
        port = self._listener.sockets[0].getsockname()[1]
        self._address = ListenAddress(address.host, port)
        self._headers = response_headers(self._address)
        self._show_link()

    async def close(self) -> None:
        """End all sessions, and stop listening."""
        if self._listener is not None:
            self._listener.close()
        endings = [session.close("the gateway stops", WSCloseCode.GOING_AWAY) for session in self._sessions]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*endings)
        # A browser that does not read would keep the rest.
        for transport in self._sessions.values():
            if transport is not None:
                transport.abort()
        await self._server.shutdown(CLOSE_SECONDS)

    @property
    def _cookie_name(self) -> str:
        """The cookie; those of all ports of an address are in one place."""
        return f"sbus-web-{self._address.port}"

    def _show_link(self) -> None:
        """Show the next link."""
        self._linked(f"http://{self._address.authority}/?token={self.logins.token}")

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request, whatever happens."""
        if isinstance(request.protocol, LoopbackConnection):
            request.protocol.stop_waiting()
        try:
            return await self._handle(request)
        except RejectedError as rejection:
            self._log.record_limited(REJECTED, rejection.words, reason=rejection.words)
            return self._respond(rejection.status, f"{rejection.words}\n".encode(), "text/plain")
        except Exception as mistake:  # the log gets the error, the browser does not
            self._log.record_limited(FAULT, "server", reason=printable(f"{type(mistake).__name__}: {mistake}", 200))
            return self._respond(500, b"internal error; see the log of sbus-web\n", "text/plain")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to a request. Raises RejectedError."""
        is_session = request.path == _SESSION_PATH
        check_origin(self._address, request.headers.get("Host"), request.headers.get("Origin"), is_required=is_session)
        if request.method not in {"GET", "HEAD"}:
            raise RejectedError(405, "method not allowed; use GET")
        if request.method == "GET" and request.path == "/" and "token" in request.query:
            return self._log_in(request.query["token"])
        login = check_login(self.logins, request.cookies.get(self._cookie_name))
        if is_session:
            check_key(login, request.headers.get("Sec-WebSocket-Protocol", ""))
            return await self._run_session(request)
        if request.path not in self._files:
            raise RejectedError(404, "not found")
        content, kind = self._files[request.path]
        return self._respond(200, content, kind)

    def _log_in(self, token: str) -> web.Response:
        """Exchange a token for the secrets of a browser, and let the browser forget the link. Raises RejectedError."""
        try:
            login = self.logins.exchange(token)
        except TooManyFailuresError:
            self._log.record_limited(WRONG_TOKEN, "")
            raise RejectedError(429, f"too many wrong tokens; try again in {FAILURE_SECONDS:g} s") from None
        if login is None:
            self._log.record_limited(WRONG_TOKEN, "")
            raise RejectedError(403, "this link is not valid: each works once; open the newest link that sbus-web has printed")
        try:
            self._show_link()
        except OSError as error:
            self._log.record_limited(FAULT, "link", reason=f"cannot write the next link: {error.strerror or error}")
        self._log.record(LOGGED_IN, logins=self.logins.count)
        response = self._respond(303, b"", "text/plain")
        # A browser sends no part of a URL that follows the "#" to a server, and the page removes it.
        response.headers["Location"] = f"/#key={login.key}"
        response.set_cookie(self._cookie_name, login.cookie, httponly=True, samesite="Strict", path="/")
        return response

    async def _run_session(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve a WebSocket until it ends."""
        socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            heartbeat=HEARTBEAT_SECONDS,
            max_msg_size=MAX_FRAME_BYTES,
            protocols=(WEBSOCKET_PROTOCOL,),
            compress=False,
        )
        socket.headers.update(self._headers)
        if not socket.can_prepare(request):
            raise RejectedError(426, "this path is for WebSockets")
        await socket.prepare(request)
        session = WebSession(socket, self._settings, self._names)
        if len(self._sessions) >= self._max_sessions:
            reason = f"too many sessions: the gateway has {self._max_sessions}, its maximum"
            self._log.record_limited(FULL, "sessions", reason=reason)
            await session.close(reason)
            return socket
        self._sessions[session] = request.transport
        try:
            if reason := await session.run():
                self._log.record_limited(SESSION_ENDED, reason, reason=reason)
        except NoBus as error:
            self._log.record_limited(NO_BUS, "", reason=str(error))
            await session.close(str(error))
        finally:
            del self._sessions[session]
            # What the browser has not read would keep the connection open.
            transport = request.transport
            if transport is not None and transport.get_write_buffer_size() > 0:
                transport.abort()
        return socket

    def _respond(self, status: int, body: bytes, kind: str) -> web.Response:
        """Return a response with the headers of all responses."""
        charset = None if kind == "image/svg+xml" else "utf-8"
        return web.Response(status=status, body=body, headers=dict(self._headers), content_type=kind, charset=charset)
