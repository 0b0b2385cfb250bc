"""Twins on this machine's loopback, with a Redis each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.bus_hosts import FIRST, SECOND, MakeTowns, Town
from tests.support.daemons import StartDaemon
from tests.support.relays import Host, RedisServer, pair, require_redis

MakeTwins = Callable[..., list[Host]]


@pytest.fixture
def twins(folder: Path) -> Iterator[MakeTwins]:
    """Make twins that know each other; all end with the test."""
    require_redis()
    made: list[Host] = []

    def make(*numbers: int, settings: str = "", keys: bool = True, buses: Mapping[int, str] | None = None) -> list[Host]:
        hosts = pair(folder, *numbers, settings=settings, keys=keys, buses=buses)
        made.extend(hosts)
        return hosts

    yield make
    for host in made:
        host.close()
    for host in made:
        told = host.relay.told()
        assert "Traceback" not in told
        assert "internal error" not in told


@pytest.fixture
def towns(twins: MakeTwins, daemon: StartDaemon, folder: Path) -> MakeTowns:
    """Make two twins that know each other, each joined to a bus of its own; *settings* are the relays', *options* the buses'.

    A relay finds its bus at ``bus-<twin>`` in the folder, a link.
    """

    def make(settings: str = "", *options: str) -> tuple[Town, Town]:
        daemons = {twin: daemon(*options) for twin in (FIRST, SECOND)}
        links = {twin: folder / f"bus-{twin}" for twin in daemons}
        for twin, link in links.items():
            link.symlink_to(daemons[twin].path)
        hosts = twins(FIRST, SECOND, settings=settings, buses={twin: str(link) for twin, link in links.items()})
        for host in hosts:
            host.relay.wait_told("joined bus")
        a, b = (Town(host, daemons[host.twin]) for host in hosts)
        return a, b

    return make


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RedisServer]]:
    """A Redis of each of two twins, for the tests of a module; each empties it first."""
    require_redis()
    made = {twin: RedisServer(tmp_path_factory.mktemp(str(twin))) for twin in (FIRST, SECOND)}
    yield made
    for server in made.values():
        server.kill()
