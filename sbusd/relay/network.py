"""The network of this host: its changes, the addresses that other hosts can have, and the group whose limits apply to an address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NETWORK_BITS = 64
"""Prefix length of every IPv6 network, RFC 4291. A host with one address of a network can have all of them."""

_PRIVATE = tuple(ipaddress.ip_network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
"""Private networks, which hosts use: RFC 1918, RFC 6598, RFC 4193."""

_HOSTS = tuple(ipaddress.IPv6Network(text) for text in ("2000::/3", "fc00::/7", "200::/7"))
"""IPv6 prefixes that hosts have: RFC 4291, RFC 4193, and Yggdrasil. Other blocks are reserved, or are translated into IPv4 by rules
of the local network, RFC 6052 and RFC 8215, so the destination of a packet is unknown.
"""

_RESERVED = tuple(ipaddress.ip_network(text) for text in ("3fff::/20", "192.88.99.0/24"))
"""Prefixes without hosts that not every Python version knows: documentation, RFC 9637, and 6to4 relays, RFC 7526."""

_CHANGES = 0x1 | 0x10 | 0x40 | 0x100 | 0x400
"""RTMGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE of linux/rtnetlink.h."""

SETTLE_SECONDS = 0.2
"""Changes come in bursts: a link, its address, then its routes."""
QUIET_SECONDS = 2.0
"""Shortest interval between two calls, for a link that goes up and down continuously."""


def plain_address(text: str) -> str:
    """Return the normal form of an address: without a zone, IPv4-mapped IPv6 as IPv4. Return other text unchanged."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def is_of_another_host(address: IPAddress) -> bool:
    """Return whether another host can have *address* and each IPv4 address embedded in it: public, or of a private network."""
    if isinstance(address, ipaddress.IPv6Address) and (inner := _embedded(address)):
        return all(is_of_another_host(each) for each in inner)
    if isinstance(address, ipaddress.IPv6Address) and not any(address in each for each in _HOSTS):
        return False
    if address.is_multicast or any(address in each for each in _RESERVED):
        return False
    return address.is_global or any(address in each for each in _PRIVATE)


def _embedded(address: ipaddress.IPv6Address) -> tuple[ipaddress.IPv4Address, ...]:
    """Return the IPv4 addresses to which packets for *address* may go: mapped, 6to4, or Teredo."""
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    return ()


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


async def watch_changes(changed: Callable[[], Awaitable[None]]) -> None:
    """Await *changed* after each burst of changes, until cancelled. Raises OSError if netlink is not available."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, _CHANGES))
        event = asyncio.Event()
        loop.add_reader(kernel, _drain, kernel, event)
        try:
            while True:
                await event.wait()
                await asyncio.sleep(SETTLE_SECONDS)
                event.clear()
                await changed()
                await asyncio.sleep(QUIET_SECONDS - SETTLE_SECONDS)
        finally:
            loop.remove_reader(kernel)


def _drain(kernel: socket.socket, event: asyncio.Event) -> None:
    """Read all waiting messages. A queue overrun counts as a change too."""
    with contextlib.suppress(BlockingIOError):
        while True:
            try:
                _, sender = kernel.recvfrom(65_536)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                sender = (0, 0)
            if sender[0] == 0:  # the kernel; other processes can send to this socket too
                event.set()
