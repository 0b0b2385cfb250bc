"""Finds the addresses of hosts: in the configured table, then by a GraphQL service, whose results are cached until the network changes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import aiohttp

from sbus.protocol.errors import SbusError
from sbus_programs.config.hosts import plain_address
from sbus_programs.config.relay import PORT, RelaySettings
from sbus_services.relay.http.client import read_body

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


NETWORKS: Mapping[str, str] = {
    "dev": "https://graphql.dev.grid.tf/graphql",
    "test": "https://graphql.test.grid.tf/graphql",
    "main": "https://graphql.grid.tf/graphql",
}
"""The public lookup services of each network."""

QUERY = "query ($twin: Int!) { twins(where: {twinID_eq: $twin}, limit: 1) { ip } }"

FRESH_SECONDS = 600.0
"""How long a cached address is used without a new lookup. Hosts rarely move."""
UNKNOWN_SECONDS = 30.0
"""How long a failed lookup is cached. A host may have just been registered."""
RETRY_SECONDS = 5.0
"""Pause before the next lookup if the service does not respond."""
TIMEOUT_SECONDS = 5.0
"""Timeout of a lookup."""
MAX_ANSWER_BYTES = 65_536
"""Largest accepted response; a usual one has a hundred bytes."""
MAX_TWINS = 100_000
"""Maximum number of cached addresses: a local client can request any number of hosts."""
LOOKUPS = 4
"""Maximum number of concurrent lookups: the service is shared with everyone."""


class UnknownHostError(SbusError, LookupError):
    """No table and no service knows the address of the host: the call fails at once."""


class ResolverUnavailableError(SbusError, ConnectionError):
    """The lookup service does not respond: the message is sent again later."""


class Resolver(Protocol):
    """Finds the addresses of hosts."""

    async def resolve(self, twin: int) -> str:
        """Return address and port of *twin*, ``10.0.0.2:8051``. Raises UnknownHostError, ResolverUnavailableError."""

    async def close(self) -> None:
        """Close connections."""


class StaticResolver:
    """The configured table, and another resolver for hosts that are not in it."""

    def __init__(self, addresses: Mapping[int, str], others: Resolver | None = None) -> None:
        """*addresses* by host number."""
        self._addresses = addresses
        self._others = others

    async def resolve(self, twin: int) -> str:
        """Return the address of *twin*."""
        if address := self._addresses.get(twin):
            return address
        if self._others is None:
            raise UnknownHostError("destination not found")
        return await self._others.resolve(twin)

    async def close(self) -> None:
        """Close the other resolver."""
        if self._others is not None:
            await self._others.close()


ReportFailure = Callable[[str], None]


class GraphQlResolver:
    """A GraphQL service with the hosts of a substrate chain."""

    def __init__(
        self, url: str, report_failure: ReportFailure, *, timeout: float = TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """*report_failure* is called with the reason of each failed lookup."""
        self._url = url
        self._report_failure = report_failure
        self._timeout = timeout
        self._clock = clock
        self._known: dict[int, tuple[float, str]] = {}
        self._down = (0.0, "")
        self._lookups = asyncio.Semaphore(LOOKUPS)
        self._session: aiohttp.ClientSession | None = None

    async def resolve(self, twin: int) -> str:
        """Return the address of *twin*; an expired one while the service is down."""
        at, address = self._known.get(twin, (0.0, ""))
        if twin in self._known and self._clock() < at + (FRESH_SECONDS if address else UNKNOWN_SECONDS):
            return _found(address)
        try:
            async with self._lookups:
                found = await self._ask(twin)
        except ResolverUnavailableError:
            if not address:
                raise
            return address
        if len(self._known) >= MAX_TWINS:
            del self._known[next(iter(self._known))]
        self._known[twin] = (self._clock(), found)
        return _found(found)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _ask(self, twin: int) -> str:
        """Return the address that the service reports, empty if it does not know the host."""
        until, reason = self._down
        if self._clock() < until:
            raise ResolverUnavailableError(reason)
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._timeout))
        try:
            query = {"query": QUERY, "variables": {"twin": twin}}
            async with self._session.post(self._url, json=query, allow_redirects=False) as response:
                if response.status != 200:
                    raise ResolverUnavailableError(f"{self._url}: status {response.status}")
                return _address_in(json.loads(await read_body(response, MAX_ANSWER_BYTES)))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            words = str(error) if isinstance(error, ResolverUnavailableError) else f"{self._url}: {str(error) or type(error).__name__}"
            self._down = (self._clock() + RETRY_SECONDS, words)
            self._report_failure(words)
            raise ResolverUnavailableError(words) from None


def make_resolver(settings: RelaySettings, report_failure: ReportFailure) -> Resolver:
    """Return the resolver for *settings*."""
    url = settings.substrate or NETWORKS.get(settings.network, "")
    return StaticResolver(
        {peer.twin: peer.address for peer in settings.peers if peer.address}, GraphQlResolver(url, report_failure) if url else None
    )


def _found(address: str) -> str:
    """Return *address*. Raises UnknownHostError if it is empty."""
    if not address:
        raise UnknownHostError("destination not found")
    return address


def _address_in(answer: Any) -> str:
    """Return the address in a response, empty if the host is unknown. Raises ValueError if the response is malformed or unsafe."""
    if not isinstance(answer, dict) or answer.get("errors") or not isinstance(answer.get("data"), dict):
        raise ValueError("the response is an error or has no data")
    twins = answer["data"].get("twins")
    if not isinstance(twins, list) or not all(isinstance(each, dict) for each in twins):
        raise ValueError("the response has no list of twins")
    if not twins:
        return ""
    address = ipaddress.ip_address(str(twins[0].get("ip", "")).partition("/")[0])
    # A writer of the chain must not direct this relay to services on its own host or network segment.
    if not is_of_another_host(address):
        raise ValueError(f"{address} is not an address that a remote host can have")
    plain = plain_address(str(address))
    return f"[{plain}]:{PORT}" if ":" in plain else f"{plain}:{PORT}"
