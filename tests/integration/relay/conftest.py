"""Hosts on this machine's loopback interface, with a Redis each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.bus_hosts import FIRST, SECOND, BusHost, MakeBusHosts
from tests.support.daemons import StartDaemon
from tests.support.relays import Host, RedisServer, pair, require_redis

MakeHosts = Callable[..., list[Host]]


@pytest.fixture
def twins(folder: Path) -> Iterator[MakeHosts]:
    """Make hosts that are configured as peers; they end with the test."""
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
        reported = host.relay.log()
        assert "Traceback" not in reported
        assert "internal error" not in reported


@pytest.fixture
def bus_hosts(twins: MakeHosts, daemon: StartDaemon, folder: Path) -> MakeBusHosts:
    """Make two hosts that are configured as peers, with a bus each; *settings* are for the relays, *options* for the buses.

    The bus of a relay is the symbolic link ``bus-<twin>`` in the folder.
    """

    def make(settings: str = "", *options: str) -> tuple[BusHost, BusHost]:
        daemons = {twin: daemon(*options) for twin in (FIRST, SECOND)}
        links = {twin: folder / f"bus-{twin}" for twin in daemons}
        for twin, link in links.items():
            link.symlink_to(daemons[twin].path)
        hosts = twins(FIRST, SECOND, settings=settings, buses={twin: str(link) for twin, link in links.items()})
        for host in hosts:
            host.relay.wait_logged("joined bus")
        a, b = (BusHost(host, daemons[host.twin]) for host in hosts)
        return a, b

    return make


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RedisServer]]:
    """A Redis for each of two hosts, shared by the tests of a module, each of which empties it first."""
    require_redis()
    made = {twin: RedisServer(tmp_path_factory.mktemp(str(twin))) for twin in (FIRST, SECOND)}
    yield made
    for server in made.values():
        server.kill()
