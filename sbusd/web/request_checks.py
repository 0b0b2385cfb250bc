"""The address of the gateway, and what a request must have before it is answered. No I/O. Spec: sbus-web(8), "SECURITY"."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from sbusd.protocol.printable import printable
from sbusd.web.logins import Login, Logins, is_equal

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
