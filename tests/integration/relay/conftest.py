"""Twins on this machine's loopback, with a Redis each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.relays import Host, pair, require_redis

MakeTwins = Callable[..., list[Host]]


@pytest.fixture
def twins(folder: Path) -> Iterator[MakeTwins]:
    """Make twins that know each other; all end with the test."""
    require_redis()
    made: list[Host] = []

    def make(*numbers: int, settings: str = "", keys: bool = True) -> list[Host]:
        hosts = pair(folder, *numbers, settings=settings, keys=keys)
        made.extend(hosts)
        return hosts

    yield make
    for host in made:
        host.close()
    for host in made:
        told = host.relay.told()
        assert "Traceback" not in told
        assert "there is a mistake" not in told
