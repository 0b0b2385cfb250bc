"""The settings of the relay, with their defaults. Spec: sbus-relay(8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from sbus.protocol.envelope import MAX_TWIN
from sbus_programs.config.hosts import AbsoluteFile, HostPort, TlsSettings, is_loopback, split_address
from sbus_programs.config.quantities import Count, Duration, Size, Spelling, show
from sbus_programs.config.rules import Origin

PORT = 8051
"""The default port of relays, as in the founding document."""

REDIS = "/run/redis-sbus-relay/redis-server.sock"
"""The socket of the Redis server for the relay only, from the unit redis-server@sbus-relay.service."""

_FORBID_UNKNOWN = {"extra": "forbid"}
_TWIN = Count(0, MAX_TWIN, "the number of a twin has 32 bits")


@dataclass(frozen=True, slots=True)
class WebAddress(Spelling):
    """An http or https URL; empty means none."""

    def parse(self, value: object) -> str:
        """Return the URL. Raises ValueError if it is invalid."""
        if value == "":
            return ""
        try:
            parts = urlsplit(value) if isinstance(value, str) else None
            if parts is not None and parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
                return parts.geturl()
        except ValueError:  # of an invalid port
            parts = None
        raise ValueError(f'must be an http or https URL, such as "https://graphql.example/graphql", not {show(value)}')


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """One ``[[peers]]``: the address of a remote host, and the key that is shared with it."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    twin: Annotated[int, Count(1, MAX_TWIN, "the number of a twin has 32 bits")]
    address: Annotated[str, HostPort(PORT)] = ""
    key_file: Annotated[str, AbsoluteFile()] = ""
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """``relay.toml``: the settings of one relay."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    twin: Annotated[int, _TWIN] = 0
    redis: str = REDIS
    listen: Annotated[str, HostPort(PORT)] = ""
    substrate: Annotated[str, WebAddress()] = ""
    network: Literal["", "dev", "test", "main"] = ""
    retry_interval: Annotated[float, Duration(0.01, 3_600.0, "a call must end")] = 5.0
    max_expiry: Annotated[float, Duration(1.0, 31_536_000.0, "the state of a call is kept for this time")] = 86_400.0
    answer_lifetime: Annotated[float, Duration(1.0, 31_536_000.0, "only the relay removes responses that are not fetched")] = 86_400.0
    queue_messages: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory")] = 10_000
    backlog_messages: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory")] = 100_000
    peer_requests: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory")] = 10_000
    peer_memory: Annotated[int, Count(1, 10_000_000, "Redis keeps them in memory, a hundred bytes each")] = 250_000
    body_bytes: Annotated[int, Size(1 << 10, 64 << 20, "a message is in memory several times")] = 1 << 20
    request_timeout: Annotated[float, Duration(0.1, 300.0, "a message waits this long for a dead host")] = 10.0
    body_timeout: Annotated[float, Duration(0.1, 300.0, "a slow host occupies a connection for this time")] = 10.0
    idle_timeout: Annotated[float, Duration(0.1, 3_600.0, "an idle host occupies a connection for this time")] = 60.0
    connections: Annotated[int, Count(1, 100_000, "each one is a file descriptor")] = 1_024
    address_connections: Annotated[int, Count(1, 100_000, "each one is a file descriptor")] = 64
    peer_connections: Annotated[int, Count(0, 100_000, "each one is a file descriptor")] = 256
    pending_bytes: Annotated[int, Size(1 << 10, 1 << 30, "the relay keeps them in memory")] = 64 << 20
    clock_skew: Annotated[float, Duration(1.0, 3_600.0, "nonces are remembered for twice this time")] = 60.0
    lease: Annotated[float, Duration(0.2, 300.0, "messages held by a dead relay wait this long")] = 10.0
    bus: Annotated[str, AbsoluteFile()] = "/run/sbus.socket"
    bus_calls: Annotated[int, Count(1, 1_000_000, "the relay keeps them in memory")] = 1_000
    """Maximum number of pending calls of one user of the bus: a hundredth of the backlog, and several times the calls of a program."""
    bus_bytes: Annotated[int, Size(1 << 20, 1 << 30, "the relay keeps them in memory")] = 8 << 20
    """Size of their data together: 26 of the largest. The relay holds it about twice, so the memory of the unit is enough for 50 users."""
    tls: TlsSettings = field(default_factory=TlsSettings)
    peers: tuple[PeerSettings, ...] = field(default_factory=tuple)

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
        """Whether hosts must authenticate."""
        return self.tls.is_on or any(peer.key_file for peer in self.peers)
