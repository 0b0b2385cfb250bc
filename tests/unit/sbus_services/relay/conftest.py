"""A real Redis for the tests of the store, because a fake one would not test the scripts."""

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
    """The Redis, emptied."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server
