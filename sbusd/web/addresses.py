"""The address on which the gateway listens, and the names under which a browser may use it. No I/O. Spec: sbus-web(8)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

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
