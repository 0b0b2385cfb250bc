"""What of the relay can be configured, with the defaults. Spec: sbus-relay(8)."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from sbusd.config.quantities import Count, Duration, Size, Spelling, show
from sbusd.config.rules import Origin

PORT = 8051
"""Where relays listen, as those of the founding document do."""

REDIS = "/run/redis-sbus-relay/redis-server.sock"
"""The socket of the relay's own Redis, which its unit redis-server@sbus-relay.service makes for the relay's user alone."""

MAX_TWIN = 0xFFFF_FFFF
"""A twin's number has 32 bits."""

_FORBID_UNKNOWN = {"extra": "forbid"}
_TWIN = Count(0, MAX_TWIN, "the number of a twin has 32 bits")


@dataclass(frozen=True, slots=True)
class HostPort(Spelling):
    """An address of IPv4 or IPv6 and a port: ``10.0.0.2:8051``, ``[fd00::2]:8051``; empty: none."""

    def parse(self, value: object) -> str:
        """Return the address. Raises ValueError if it is none."""
        if value == "":
            return ""
        if isinstance(value, str) and split_address(value) is not None:
            return value
        raise ValueError(f'must be an address and port, such as "10.0.0.2:{PORT}" or "[fd00::2]:{PORT}", not {show(value)}')


@dataclass(frozen=True, slots=True)
class AbsoluteFile(Spelling):
    """The absolute path of a file; empty: none."""

    def parse(self, value: object) -> str:
        """Return the path. Raises ValueError if it is none, or relative: to what, a service would have to guess."""
        if not isinstance(value, str) or "\0" in value or (value and not os.path.isabs(value)):
            raise ValueError(f'must be an absolute path, such as "/etc/sbus/relay.key", not {show(value)}')
        return value


@dataclass(frozen=True, slots=True)
class WebAddress(Spelling):
    """A URL of http or https; empty: none."""

    def parse(self, value: object) -> str:
        """Return the URL. Raises ValueError if it is none."""
        if value == "":
            return ""
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
            if parts is not None and parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
                return parts.geturl()
        except ValueError:  # of a port that is none
            parts = None
        raise ValueError(f'must be an http or https URL, such as "https://graphql.example/graphql", not {show(value)}')


def split_address(address: str) -> tuple[str, int] | None:
    """Return the host and the port of *address*, None if it is not a numeric address and a port."""
    host, _, digits = address.rpartition(":")
    if not digits.isascii() or not digits.isdigit() or not 0 <= int(digits) <= 0xFFFF:
        return None
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        parsed = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None
    return (str(parsed), int(digits)) if (parsed.version == 6) is bracketed else None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """``[tls]``: the certificate of this host, and who signs those of the others. All three or none."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    certificate: Annotated[str, AbsoluteFile()] = ""
    """File with the certificate, PEM; it names this twin as ``DNS:twin-<number>``."""
    key: Annotated[str, AbsoluteFile()] = ""
    """File with its private key, PEM."""
    authority: Annotated[str, AbsoluteFile()] = ""
    """File with the certificates of who may sign those of other twins, PEM."""

    def __post_init__(self) -> None:
        if len({bool(each) for each in (self.certificate, self.key, self.authority)}) > 1:
            raise ValueError("[tls] requires certificate, key and authority, or none of them")

    @property
    def is_on(self) -> bool:
        """Whether hosts authenticate each other by certificates."""
        return bool(self.certificate)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """One ``[[peers]]``: another twin, where it is, and the key that is shared with it."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    twin: Annotated[int, Count(1, MAX_TWIN, "the number of a twin has 32 bits")]
    address: Annotated[str, HostPort()] = ""
    """Its relay; empty: the resolver knows, or it only asks and is never asked."""
    key_file: Annotated[str, AbsoluteFile()] = ""
    """File with the key, which its owner alone may read; empty: certificates."""
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """``relay.toml``: everything about one relay."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    twin: Annotated[int, _TWIN] = 0
    """The number of this host; 0: ``--twin`` says it."""
    redis: str = REDIS
    """Redis: ``HOST:PORT``, the path of a socket, or a URL."""
    listen: Annotated[str, HostPort()] = ""
    """Where other relays find this one; empty: every address if hosts are authenticated, else loopback."""
    substrate: Annotated[str, WebAddress()] = ""
    """A GraphQL service that knows the addresses of twins."""
    network: Literal["", "dev", "test", "main"] = ""
    """Which of the public networks knows them, if ``substrate`` is empty."""
    retry_interval: Annotated[float, Duration(0.01, 3_600.0, "a call must end")] = 5.0
    """Seconds between two tries to reach a twin."""
    max_expiry: Annotated[float, Duration(1.0, 31_536_000.0, "the state of a call is kept for this time")] = 86_400.0
    """The largest ``exp`` that is accepted, in seconds."""
    answer_lifetime: Annotated[float, Duration(1.0, 31_536_000.0, "only the relay removes responses that are not fetched")] = 86_400.0
    """Seconds after the last answer in it for which a return queue is kept."""
    queue_messages: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory")] = 10_000
    """Messages in one queue: a command's, a client's return queue, or what came from other hosts."""
    backlog_messages: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory")] = 100_000
    """Requests of this host that may wait for answers."""
    peer_requests: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory")] = 10_000
    """Requests of one twin that may wait for an answer of this host."""
    peer_memory: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory, a hundred bytes each")] = 250_000
    """Requests of one twin that are remembered until they expire, to recognise them if they come again."""
    body_bytes: Annotated[int, Size(1 << 10, 64 << 20, "a message is in memory several times")] = 1 << 20
    """The largest message."""
    request_timeout: Annotated[float, Duration(0.1, 300.0, "a message waits this long for a dead host")] = 10.0
    """Seconds until another host has to have taken a message."""
    body_timeout: Annotated[float, Duration(0.1, 300.0, "a slow host occupies a connection for this time")] = 10.0
    """Seconds in which another host has to have sent one."""
    idle_timeout: Annotated[float, Duration(0.1, 3_600.0, "an idle host occupies a connection for this time")] = 60.0
    """Seconds for which a connection without a request is kept."""
    connections: Annotated[int, Count(1, 100_000, "each one is a file descriptor")] = 1_024
    """Connections of other hosts, without those that are reserved."""
    address_connections: Annotated[int, Count(1, 100_000, "each one is a file descriptor")] = 64
    """Connections of one address of IPv4, or of one /64 of IPv6."""
    peer_connections: Annotated[int, Count(0, 100_000, "each one is a file descriptor")] = 256
    """Connections that are reserved for the addresses under ``[[peers]]``."""
    pending_bytes: Annotated[int, Size(1 << 10, 1 << 30, "the relay keeps them in memory")] = 64 << 20
    """Bytes of bodies whose senders are not verified yet; the addresses under ``[[peers]]`` have as many again."""
    clock_skew: Annotated[float, Duration(1.0, 3_600.0, "nonces are remembered for twice this time")] = 60.0
    """Seconds by which the clock of a host with a shared key may be wrong."""
    lease: Annotated[float, Duration(0.2, 300.0, "messages held by a dead relay wait this long")] = 10.0
    """Seconds without a sign of life after which other relays at the same Redis take over."""
    bus: Annotated[str, AbsoluteFile()] = "/run/sbus.socket"
    """The bus whose users can call other hosts, whose services they can call, and on which attempts are told; empty: none."""
    bus_calls: Annotated[int, Count(1, 1_000_000, "the relay keeps them in memory")] = 1_000
    """Calls of one user of the bus that may be under way: a hundredth of the backlog, and some times what a program has."""
    bus_bytes: Annotated[int, Size(1 << 20, 1 << 30, "the relay keeps them in memory")] = 8 << 20
    """Their data together: twenty-six of the largest; the relay holds it about twice, so the unit's memory is enough for fifty users."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    """Certificates."""
    peers: tuple[PeerSettings, ...] = field(default_factory=tuple)
    """The other twins."""

    def __post_init__(self) -> None:
        twins = [peer.twin for peer in self.peers]
        if twice := next((twin for twin in twins if twins.count(twin) > 1), None):
            raise ValueError(f"duplicate [[peers]] with twin = {twice}; keep one of them")
        if self.pending_bytes < self.body_bytes:
            raise ValueError("pending_bytes must be at least body_bytes, or the largest message would never be accepted")
        if self.tls.is_on and any(peer.key_file for peer in self.peers):
            raise ValueError("[tls] and key_file are both set; hosts authenticate by certificates or by keys: remove one of them")
        if self.listen and not self.is_authenticated and not is_loopback(self.listen):
            raise ValueError(
                f"listen = {show(self.listen)} accepts connections of other hosts without authentication; "
                "set [tls], or key_file in each of [[peers]], or listen on 127.0.0.1"
            )

    @property
    def peer_hosts(self) -> tuple[str, ...]:
        """The addresses of ``[[peers]]``, without their ports."""
        splits = (split_address(peer.address) for peer in self.peers)
        return tuple(split[0] for split in splits if split is not None)

    @property
    def is_authenticated(self) -> bool:
        """Whether hosts have to show who they are."""
        return self.tls.is_on or any(peer.key_file for peer in self.peers)


def is_loopback(address: str) -> bool:
    """Return whether *address*, a host and a port, is reached from this host alone."""
    split = split_address(address)
    return split is not None and ipaddress.ip_address(split[0]).is_loopback
