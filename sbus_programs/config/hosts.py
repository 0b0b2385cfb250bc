"""Settings of the programs that connect hosts, sbus-relay(8) and sbus-link(8): addresses, files and certificates."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sbus_programs.config.quantities import Spelling, show

_NETWORK_BITS = 64
"""Prefix length of every IPv6 network, RFC 4291. A host with one address of a network can have all of them."""


def plain_address(text: str) -> str:
    """Return the normal form of an address: without a zone, IPv4-mapped IPv6 as IPv4. Return other text unchanged."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@dataclass(frozen=True, slots=True)
class AddressGroup:
    """The addresses that share limits."""

    name: str
    """The address of a configured peer, an IPv4 address, or the /64 network of an IPv6 address."""
    is_peer: bool


class AddressGroups:
    """Finds the group of an address, and distinguishes configured peers from other addresses."""

    def __init__(self, peers: Iterable[str]) -> None:
        """*peers*: addresses of the configured peers, without ports."""
        self._peers = frozenset(plain_address(each) for each in peers)

    def group(self, address: str) -> AddressGroup:
        """Return the group of *address*."""
        plain = plain_address(address)
        if plain in self._peers:
            return AddressGroup(plain, is_peer=True)
        if ":" not in plain:
            return AddressGroup(plain, is_peer=False)
        return AddressGroup(str(ipaddress.ip_network((plain, _NETWORK_BITS), strict=False)), is_peer=False)


_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class HostPort(Spelling):
    """An IPv4 or IPv6 address and a port: ``10.0.0.2:8051``, ``[fd00::2]:8051``; empty means none. ``port`` is for the error text."""

    port: int

    def parse(self, value: object) -> str:
        """Return the address. Raises ValueError if it is invalid."""
        if value == "":
            return ""
        if isinstance(value, str) and split_address(value) is not None:
            return value
        raise ValueError(f'must be an address and port, such as "10.0.0.2:{self.port}" or "[fd00::2]:{self.port}", not {show(value)}')


@dataclass(frozen=True, slots=True)
class AbsoluteFile(Spelling):
    """The absolute path of a file; empty means none."""

    def parse(self, value: object) -> str:
        """Return the path. Raises ValueError if it is not absolute: a service has no useful working directory."""
        if not isinstance(value, str) or "\0" in value or (value and not os.path.isabs(value)):
            raise ValueError(f'must be an absolute path, such as "/etc/sbus/host.key", not {show(value)}')
        return value


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """``[tls]``: the certificate of this host, and the authority of the others. Either all three keys or none."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    certificate: Annotated[str, AbsoluteFile()] = ""
    key: Annotated[str, AbsoluteFile()] = ""
    authority: Annotated[str, AbsoluteFile()] = ""

    def __post_init__(self) -> None:
        if len({bool(each) for each in (self.certificate, self.key, self.authority)}) > 1:
            raise ValueError("[tls] requires certificate, key and authority, or none of them")

    @property
    def is_on(self) -> bool:
        """Whether hosts authenticate each other with certificates."""
        return bool(self.certificate)


def split_address(address: str) -> tuple[str, int] | None:
    """Return the host and the port of *address*, or None if it is not a numeric address and a port."""
    host, _, digits = address.rpartition(":")
    if not digits.isascii() or not digits.isdigit() or not 0 <= int(digits) <= 0xFFFF:
        return None
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        parsed = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None
    return (str(parsed), int(digits)) if (parsed.version == 6) is bracketed else None


def is_loopback(address: str) -> bool:
    """Return whether *address*, a host and a port, can be reached from this host only."""
    split = split_address(address)
    return split is not None and ipaddress.ip_address(split[0]).is_loopback
