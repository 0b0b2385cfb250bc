"""The settings of the link, with their defaults. Spec: link.toml(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.hosts import AbsoluteFile, HostPort, TlsSettings
from sbus_programs.config.quantities import NO_BOUND, Bound, Count, Size, Spelling, show
from sbus_programs.config.rules import Origin

PORT = 4223
"""The port in examples of ``transport = "direct"``, next to that of NATS."""

EVERY_HOST = "*"
"""The entry of a list of hosts that means all of them."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")

_FORBID_UNKNOWN = {"extra": "forbid"}

_PEER = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})")


def is_name(text: str) -> bool:
    """Return whether *text* can be the name of a host or a realm: 1 to 63 letters, digits, ``_`` and ``-``."""
    return _NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Name(Spelling):
    """The name of a host or a realm; empty means that it is not set."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if it is invalid."""
        if isinstance(value, str) and (not value or is_name(value)):
            return value
        raise ValueError(f'must be 1 to 63 letters, digits, "_" and "-", not {show(value)}')


@dataclass(frozen=True, slots=True)
class NameOrEvery(Spelling):
    """The name of a host, or ``"*"`` for every host."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if it is invalid."""
        if isinstance(value, str) and (value == EVERY_HOST or is_name(value)):
            return value
        raise ValueError(f'must be the name of a host, or "*" for every host, not {show(value)}')


@dataclass(frozen=True, slots=True)
class Pattern(Spelling):
    """A pattern of keys, sbus(7)."""

    def parse(self, value: object) -> str:
        """Return the pattern. Raises ValueError if it cannot be one."""
        if isinstance(value, str) and "\0" not in value and len(value.encode("utf-8", "surrogatepass")) <= MAX_KEY_BYTES:
            return value
        raise ValueError(f'must be a pattern of keys of at most {MAX_KEY_BYTES} bytes, such as "net/", not {show(value)}')


@dataclass(frozen=True, slots=True)
class PeerAddress(Spelling):
    """A host name or address with a port: ``beta.example:4223``, ``[fd00::2]:4223``; empty means none."""

    def parse(self, value: object) -> str:
        """Return the address. Raises ValueError if it is invalid."""
        if value == "" or (isinstance(value, str) and peer_address(value) is not None):
            return value
        raise ValueError(f'must be a host and a port, such as "10.0.0.2:{PORT}" or "beta.example:{PORT}", not {show(value)}')


def peer_address(text: str) -> tuple[str, int] | None:
    """Return the host and the port in *text*, or None if it is not a host and a port."""
    match = _PEER.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 0xFFFF:
        return None
    return match[1].strip("[]"), int(match[2])


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """One ``[[export]]``: messages that may leave this host."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    keys: Annotated[str, Pattern()]
    hosts: tuple[Annotated[str, NameOrEvery()], ...] = (EVERY_HOST,)
    rate: Annotated[int, Bound(1, 10_000_000, "a link transfers fewer")] = NO_BOUND
    max_payload: Annotated[int, Size(0, MAX_PACKET_BYTES, "no payload is longer than a packet")] = MAX_PACKET_BYTES
    max_blob: Annotated[int, Size(0, 1 << 50, "no machine has more memory")] = 0
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """One ``[[import]]``: messages of other hosts that may come in."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    keys: Annotated[str, Pattern()]
    hosts: tuple[Annotated[str, NameOrEvery()], ...] = (EVERY_HOST,)
    shared: bool = False
    max_blob: Annotated[int, Size(0, 1 << 50, "no machine has more memory")] = 0
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class LinkPeerSettings:
    """One ``[[peers]]``: another host, for ``transport = "direct"``."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    host: Annotated[str, Name()]
    address: Annotated[str, PeerAddress()] = ""
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """``link.toml``: the settings of one link."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    realm: Annotated[str, Name()] = ""
    host: Annotated[str, Name()] = ""
    transport: Literal["nats", "direct"] = "nats"
    servers: tuple[str, ...] = ()
    password_file: Annotated[str, AbsoluteFile()] = ""
    nkey_file: Annotated[str, AbsoluteFile()] = ""
    listen: Annotated[str, HostPort(PORT)] = ""
    bus: Annotated[str, AbsoluteFile()] = "/run/sbus.socket"
    spool: Annotated[int, Size(0, 1 << 30, "the link keeps it in memory")] = 8 << 20
    max_pending: Annotated[int, Size(1 << 20, 1 << 30, "the link keeps them in memory")] = 8 << 20
    state_interval: Annotated[int, Count(1, 3_600, "the state is a message on the bus")] = 10
    secret_hosts: tuple[Annotated[str, NameOrEvery()], ...] = ()
    tls: TlsSettings = field(default_factory=TlsSettings)
    peers: tuple[LinkPeerSettings, ...] = field(default_factory=tuple)
    exports: Annotated[tuple[ExportSettings, ...], Field(alias="export")] = field(default_factory=tuple)
    imports: Annotated[tuple[ImportSettings, ...], Field(alias="import")] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        names = [peer.host for peer in self.peers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"duplicate [[peers]] with host = {show(twice)}; keep one of them")
        if self.transport == "direct":
            self._check_direct()
        else:
            self._check_nats()

    def _check_nats(self) -> None:
        for what, is_set in (("listen", bool(self.listen)), ("[[peers]]", bool(self.peers))):
            if is_set:
                raise ValueError(f'{what} is for transport = "direct"; remove it, or set the transport')
        if self.password_file and self.nkey_file:
            raise ValueError("password_file and nkey_file are both set; remove one of them")

    def _check_direct(self) -> None:
        secrets = (("password_file", bool(self.password_file)), ("nkey_file", bool(self.nkey_file)))
        for what, is_set in (("servers", bool(self.servers)), *secrets):
            if is_set:
                raise ValueError(f'{what} is for transport = "nats"; remove it, or set the transport')
        for what, is_set in (("[tls]", self.tls.is_on), ("[[peers]]", bool(self.peers))):
            if not is_set:
                raise ValueError(f'{what} is not set; transport = "direct" requires it')
        called = next((peer.host for peer in self.peers if not peer.address), None)
        if called is not None and not self.listen:
            raise ValueError(f"listen is not set, and [[peers]] with host = {show(called)} has no address; set one of them")
