"""Lookup of addresses: the table, and a GraphQL service that is queried rarely and may be down, slow or wrong."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sbus_programs.config.relay import PeerSettings, RelaySettings
from sbus_services.relay.resolver import (
    FRESH_SECONDS,
    RETRY_SECONDS,
    UNKNOWN_SECONDS,
    GraphQlResolver,
    ResolverUnavailableError,
    StaticResolver,
    UnknownHostError,
    is_of_another_host,
    make_resolver,
)


class Service:
    """A GraphQL service with errors and a clock that tests control."""

    def __init__(self) -> None:
        self.twins: dict[int, str] = {1002: "10.0.0.2"}
        self.answer: Any = None
        self.status = 200
        self.asked = 0
        self.hangs = False
        self.seconds = 100.0
        self.reported: list[str] = []

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(60)
        query = await request.json()
        assert "twins(where: {twinID_eq: $twin}" in query["query"]
        ip = self.twins.get(query["variables"]["twin"])
        found = {"data": {"twins": [{"ip": ip}] if ip else []}}
        return web.json_response(found if self.answer is None else self.answer, status=self.status)

    def run(self, test: Callable[[GraphQlResolver], Awaitable[None]], timeout: float = 300.0) -> None:
        async def run() -> None:
            async with TestServer(_application(self)) as server:
                resolver = GraphQlResolver(str(server.make_url("/")), self.reported.append, timeout=timeout, clock=lambda: self.seconds)
                try:
                    await test(resolver)
                finally:
                    await resolver.close()

        asyncio.run(run())


def _application(service: Service) -> web.Application:
    application = web.Application()
    application.router.add_post("/", service.serve)
    return application


def test_the_table_takes_precedence() -> None:
    async def run() -> None:
        table = StaticResolver({1002: "10.0.0.2:1"})
        assert await table.resolve(1002) == "10.0.0.2:1"
        with pytest.raises(UnknownHostError, match="destination not found"):
            await table.resolve(1003)
        await table.close()

    asyncio.run(run())


def test_an_answer_is_kept_for_a_while() -> None:
    service = Service()

    async def test(resolver: GraphQlResolver) -> None:
        assert await resolver.resolve(1002) == "10.0.0.2:8051"
        service.twins[1002] = "fd00::2/64"
        service.seconds += FRESH_SECONDS - 1
        assert await resolver.resolve(1002) == "10.0.0.2:8051"
        assert service.asked == 1
        service.seconds += 2
        assert await resolver.resolve(1002) == "[fd00::2]:8051"
        assert service.asked == 2

    service.run(test)


def test_unknown_host_is_cached() -> None:
    service = Service()

    async def test(resolver: GraphQlResolver) -> None:
        for _ in range(3):
            with pytest.raises(UnknownHostError):
                await resolver.resolve(7)
        assert service.asked == 1
        service.twins[7] = "10.0.0.7"
        service.seconds += UNKNOWN_SECONDS + 1
        assert await resolver.resolve(7) == "10.0.0.7:8051"

    service.run(test)


def test_cached_addresses_are_used_while_the_service_is_down() -> None:
    service = Service()

    async def test(resolver: GraphQlResolver) -> None:
        await resolver.resolve(1002)
        service.status = 502
        service.seconds += FRESH_SECONDS + 1
        assert await resolver.resolve(1002) == "10.0.0.2:8051"
        assert len(service.reported) == 1
        assert "status 502" in service.reported[0]
        with pytest.raises(ResolverUnavailableError):
            await resolver.resolve(1003)
        assert service.asked == 2, "it is left alone for a while"
        service.status, service.twins[1003] = 200, "10.0.0.3"
        service.seconds += RETRY_SECONDS + 1
        assert await resolver.resolve(1003) == "10.0.0.3:8051"

    service.run(test)


def test_a_service_that_hangs_is_away() -> None:
    service = Service()
    service.hangs = True

    async def test(resolver: GraphQlResolver) -> None:
        with pytest.raises(ResolverUnavailableError):
            await resolver.resolve(1002)

    service.run(test, timeout=0.1)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"errors": [{"message": "no"}], "data": None},
        {"data": {"twins": 1}},
        {"data": {"twins": [1]}},
        {"data": {"twins": [{"ip": "nowhere"}]}},
        {"data": {"twins": [{"ip": "127.0.0.1"}]}},
        {"data": {"twins": [{"ip": "::1"}]}},
        {"data": {"twins": [{"ip": "169.254.169.254"}]}},
        {"data": {"twins": [{"ip": "::ffff:127.0.0.1/64"}]}},
        {"data": {"twins": [{"ip": "x" * 100_000}]}},
    ],
)
def test_an_invalid_response_is_not_an_address(answer: Any) -> None:
    """Nor is one that would lead back into this host."""
    service = Service()
    service.answer = answer

    async def test(resolver: GraphQlResolver) -> None:
        with pytest.raises(ResolverUnavailableError):
            await resolver.resolve(1002)
        assert len(service.reported) == 1

    service.run(test)


def test_settings_select_the_resolver() -> None:
    peers = (PeerSettings(1002, "10.0.0.2:8051"), PeerSettings(1003))

    async def run() -> None:
        resolver = make_resolver(RelaySettings(peers=peers), lambda _: None)
        assert await resolver.resolve(1002) == "10.0.0.2:8051"
        with pytest.raises(UnknownHostError):
            await resolver.resolve(1003)

    asyncio.run(run())


NOT_OF_ANOTHER = [
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "100::1", "2001:db8::1"),
    # Notations that contain an IPv4 address, and reserved blocks.
    *("::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "64:ff9b::8.8.8.8", "64:ff9b:1:7f00:0:100::", "64:ff9b:1::8.8.8.8", "::8.8.8.8"),
    *("fec0::1", "5f00::1", "3fff::1", "3fff:fff::1", "4000::1", "192.88.99.1"),
]

OF_ANOTHER = [
    *("10.0.0.2", "172.16.0.2", "192.168.1.2", "100.64.0.1", "8.8.8.8"),
    *("fd00::2", "2a00:1450::1", "200:1234::1", "301:1234::1"),  # the last two are of Yggdrasil
]


@pytest.mark.parametrize("text", NOT_OF_ANOTHER)
def test_addresses_of_this_host_and_of_no_host(text: str) -> None:
    assert not is_of_another_host(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", OF_ANOTHER)
def test_addresses_of_another_host(text: str) -> None:
    assert is_of_another_host(ipaddress.ip_address(text))


def written(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    """Return all IPv6 addresses that may contain *address*."""
    number = int(address)
    other = int(ipaddress.IPv4Address("8.8.8.8"))
    return [
        ipaddress.IPv6Address(f"::ffff:{address}"),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2002::")) | number << 80 | 1),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b:1::")) | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2001::")) | number << 64 | other ^ 0xFFFF_FFFF),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2001::")) | other << 64 | number ^ 0xFFFF_FFFF),
        ipaddress.IPv6Address(number),
    ]


@pytest.mark.parametrize("text", [text for text in NOT_OF_ANOTHER if ":" not in text])
def test_an_embedded_address_is_found(text: str) -> None:
    assert [str(each) for each in written(ipaddress.IPv4Address(text)) if is_of_another_host(each)] == []


def test_a_host_behind_a_tunnel_is_one_and_one_behind_a_translation_is_not() -> None:
    mapped, sixtofour, nat64, local_nat64, *teredo, compatible = written(ipaddress.IPv4Address("8.8.8.8"))
    assert all(is_of_another_host(each) for each in (mapped, sixtofour, *teredo))
    assert not any(is_of_another_host(each) for each in (nat64, local_nat64, compatible))
