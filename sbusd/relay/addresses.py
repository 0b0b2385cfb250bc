"""Addresses of other hosts: what each counts as where places are limited, and which ones can be another host at all."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NETWORK_BITS = 64
"""Every network of IPv6 has that prefix, RFC 4291: a host that has one address of it can have all of them."""

_PRIVATE = tuple(ipaddress.ip_network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
"""Networks that are not of the Internet, and that hosts have: RFC 1918, RFC 6598, RFC 4193."""

_HOSTS = tuple(ipaddress.IPv6Network(text) for text in ("2000::/3", "fc00::/7", "200::/7"))
"""All that hosts have of IPv6: RFC 4291, RFC 4193, and Yggdrasil, which twins have. Other blocks are reserved, or translated into IPv4
by rules that each network makes for itself, RFC 6052 and RFC 8215: where a packet goes cannot be told from them.
"""

_RESERVED = tuple(ipaddress.ip_network(text) for text in ("3fff::/20", "192.88.99.0/24"))
"""Of no host, and not known as such to every Python: documentation, RFC 9637, and the relays of 6to4, RFC 7526."""


def plain_address(text: str) -> str:
    """Return an address as it is written everywhere here: without an interface, IPv4 as IPv4. Other text is returned unchanged."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_of_another_host(address: IPAddress) -> bool:
    """Return whether *address*, and each IPv4 address in it, is one that another host can have: public, or of a private network."""
    if isinstance(address, ipaddress.IPv6Address) and (inner := _embedded(address)):
        return all(is_of_another_host(each) for each in inner)
    if isinstance(address, ipaddress.IPv6Address) and not any(address in each for each in _HOSTS):
        return False
    if address.is_multicast or any(address in each for each in _RESERVED):
        return False
    return address.is_global or any(address in each for each in _PRIVATE)


def _embedded(address: ipaddress.IPv6Address) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the IPv4 addresses that packets to *address* may go to: mapped, 6to4, or Teredo."""
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    return ()


@dataclass(frozen=True, slots=True)
class AddressGroup:
    """Whose a connection counts as."""

    name: str
    """The address of a configured peer or of IPv4, else the network of IPv6."""
    is_peer: bool


class AddressGroups:
    """Tells configured peers from all other addresses."""

    def __init__(self, peers: Iterable[str]) -> None:
        """*peers*: the addresses of configured peers, without ports."""
        self._peers = frozenset(plain_address(each) for each in peers)

    def group(self, address: str) -> AddressGroup:
        """Return whose a connection from *address* counts as."""
        plain = plain_address(address)
        if plain in self._peers:
            return AddressGroup(plain, is_peer=True)
        if ":" not in plain:
            return AddressGroup(plain, is_peer=False)
        return AddressGroup(str(ipaddress.ip_network((plain, _NETWORK_BITS), strict=False)), is_peer=False)
