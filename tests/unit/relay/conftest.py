"""A Redis for the tests of what is kept there: a fake one would prove nothing of the scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.relays import RedisServer, require_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    require_redis()
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


@pytest.fixture
def server(redis_server: RedisServer) -> RedisServer:
    """It, empty."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server
