"""Changes of this host's links, addresses and routes: an unreachable host may be reachable after one. Source: rtnetlink(7).

The contents of the kernel's messages do not matter, because a failed attempt costs little.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable

_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400
"""RTMGRP_LINK, _IPV4_IFADDR, _IPV4_ROUTE, _IPV6_IFADDR, _IPV6_ROUTE of linux/rtnetlink.h."""

SETTLE_SECONDS = 0.2
"""Changes come in bursts: a link, its address, then its routes."""
QUIET_SECONDS = 2.0
"""Shortest interval between two calls, for a link that goes up and down continuously."""


async def watch(changed: Callable[[], Awaitable[None]]) -> None:
    """Await *changed* after each burst of changes, until cancelled. Raises OSError if netlink is not available."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, _GROUPS))
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
