"""The group whose limits apply to an address of another host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

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
