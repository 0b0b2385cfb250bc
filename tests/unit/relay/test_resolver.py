"""Lookup of addresses: the table, and a GraphQL service that is queried rarely and may be down, slow or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sbusd.config.relay import PeerSettings, RelaySettings
from sbusd.relay.resolver import (
    FRESH_SECONDS,
    RETRY_SECONDS,
    UNKNOWN_SECONDS,
    GraphQlResolver,
    ResolverUnavailableError,
    StaticResolver,
    UnknownHostError,
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
