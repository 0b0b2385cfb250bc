"""The HTTP server: the link, the files of the page, and WebSockets. Spec: sbus-web(8).

Nothing is served without a login. The user of each connection is checked when it begins (`sbus_services.web.loopback`), and the host
and origin of every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources

from aiohttp import WSCloseCode, web

from sbus import NoBus
from sbus.protocol.printable import printable
from sbus_programs.systemd.event_loop import report_exhaustion
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.web.connections import Names
from sbus_services.web.frames import MAX_FRAME_BYTES
from sbus_services.web.log_messages import FAULT, FULL, LOGGED_IN, NO_BUS, REJECTED, SESSION_ENDED, WRONG_TOKEN
from sbus_services.web.logins import FAILURE_SECONDS, Login, Logins, TooManyFailuresError, is_equal
from sbus_services.web.loopback import Admission, LoopbackConnection
from sbus_services.web.session import SessionSettings, WebSession

_HTTP_PORT = 80

_ADVICE = "only this machine may connect; from another one use 'ssh -L PORT:127.0.0.1:PORT HOST'"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A loopback address, and a port; 0 for one that the kernel chooses."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Return the address in ``HOST:PORT``: ``127.0.0.1:8080``, ``localhost:0`` or ``[::1]:8080``.

        Raises:
            ValueError: it has another form, or it is not a loopback address.
        """
        host, colon, digits = text.rpartition(":")
        if not colon or not host or not digits.isascii() or not digits.isdigit() or len(digits) > 5 or int(digits) > 65_535:
            raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8080 or [::1]:0")
        if host == "localhost":
            host = "127.0.0.1"
        is_bracketed = host.startswith("[") and host.endswith("]")
        try:
            address = ipaddress.ip_address(host[1:-1] if is_bracketed else host)
        except ValueError:
            raise ValueError(f"{host!r} is not a loopback address; {_ADVICE}") from None
        if (address.version == 6) != is_bracketed:
            raise ValueError(f"{text!r} is not HOST:PORT; an IPv6 address is in brackets: [::1]:8080")
        if not address.is_loopback:
            raise ValueError(f"{host!r} is not a loopback address; {_ADVICE}")
        return cls(str(address), int(digits))

    @property
    def authority(self) -> str:
        """``HOST:PORT`` in a URL; without the port if that is the default of HTTP."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _HTTP_PORT else f"{host}:{self.port}"

    @property
    def authorities(self) -> frozenset[str]:
        """The values of ``Host`` that are accepted. Another name, whose owner can let it point here, is not among them."""
        return frozenset({self.authority, "localhost" if self.port == _HTTP_PORT else f"localhost:{self.port}"})

    @property
    def origins(self) -> frozenset[str]:
        """The values of ``Origin`` that are accepted."""
        return frozenset(f"http://{authority}" for authority in self.authorities)


WEBSOCKET_PROTOCOL = "sbus-web"

KEY_HEAD = "key."
"""The prefix of the WebSocket protocol that carries the key: a page cannot set other headers."""


class RejectedError(Exception):
    """A request that is not answered: the HTTP status and the text of the response."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


NO_LOGIN = "This browser is not logged in. Open the link that sbus-web has printed: each link works once."


def response_headers(address: ListenAddress) -> Mapping[str, str]:
    """Return the headers of every response: no script but the page's own, no other origin, nothing kept in a cache."""
    sockets = " ".join(sorted(f"ws://{authority}" for authority in address.authorities))
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self' {sockets}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def check_origin(address: ListenAddress, host: str | None, origin: str | None, *, is_required: bool) -> None:
    """Check the headers ``Host`` and ``Origin``. A browser sets them, and a page cannot change them.

    Raises:
        RejectedError: the page of another site made the request, or its host name only points to this machine.
    """
    if host is None or host.lower() not in address.authorities:
        words = f"host '{printable(host or '', 80)}' is not served; use http://{address.authority}/"
        raise RejectedError(403, words)
    if origin is None and not is_required:
        return
    if origin is None or origin.lower() not in address.origins:
        raise RejectedError(403, f"origin '{printable(origin or '', 80)}' may not use this gateway")


def check_login(logins: Logins, cookie: str | None) -> Login:
    """Return the login of a cookie. Raises RejectedError."""
    login = None if cookie is None else logins.find(cookie)
    if login is None:
        raise RejectedError(401, NO_LOGIN)
    return login


def check_key(login: Login, protocols: str) -> None:
    """Check the key among the WebSocket *protocols*, the value of the header. Raises RejectedError."""
    offered = [protocol.strip() for protocol in protocols.split(",")]
    if WEBSOCKET_PROTOCOL not in offered:
        raise RejectedError(400, f"the WebSocket needs the protocol {WEBSOCKET_PROTOCOL}")
    keys = [protocol.removeprefix(KEY_HEAD) for protocol in offered if protocol.startswith(KEY_HEAD)]
    if len(keys) != 1 or not is_equal(keys[0], login.key):
        raise RejectedError(403, "the WebSocket needs the key of this login; open a new link of sbus-web")


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
