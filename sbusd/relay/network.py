"""The network of this host: its changes, and the addresses that other hosts can have."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

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
