"""120 hosts in one process: the work for a change of interest, in messages."""

from __future__ import annotations

from collections import Counter

import pytest

from sbus_services.link.rules import Export, Import, Rules
from tests.support.link_hosts import Host, World

HOSTS = 120
"""More than the hundred from which on heartbeats come less often. The work of a test grows with the square."""

RULES = Rules("R", "a", (Export(b"net/"),), (Import(b""),))


def _realm() -> tuple[World, list[Host]]:
    world = World(1)
    world.slowest = 0.004
    hosts = [world.host(f"h{number}", RULES) for number in range(HOSTS)]
    world.run(1)
    assert all(len(host.session.live_hosts()) == HOSTS - 1 for host in hosts)
    return world, hosts


def _sent(world: World, seconds: float) -> Counter[str]:
    """Return how many messages hosts send in *seconds*, by kind."""
    before = world.sent.copy()
    world.run(seconds)
    return world.sent - before


def test_a_change_costs_one_announcement_and_a_confirmation_of_each_host_that_it_concerns() -> None:
    world, hosts = _realm()
    changes = world.bus_changes

    # One host is named: one announcement, one confirmation, one subscription at its bus.
    hosts[0].client(1, b"host/h7/net/x")
    sent = _sent(world, 0.5)
    assert (sent["i"], sent["x"], world.bus_changes - changes) == (1, 1, 1)

    # The same pattern of further clients costs nothing.
    for number in range(2, 20):
        hosts[0].client(number, b"host/h7/net/x")
    sent = _sent(world, 0.3)
    assert (sent["i"], sent["x"]) == (0, 0)

    # All hosts are named: one announcement, and one confirmation of each.
    hosts[1].client(1, b"host/*/net/")
    sent = _sent(world, 0.1)
    assert (sent["i"], sent["x"]) == (1, HOSTS - 1)

    # Many patterns within one batch: still one announcement.
    hosts[2].client(1, *(b"host/h9/net/%d" % number for number in range(200)))
    sent = _sent(world, 0.04)
    assert sent["i"] <= 2
    assert sent["x"] <= 2


@pytest.mark.slow
def test_a_host_that_joins_costs_a_few_messages_of_each_other_host() -> None:
    world, hosts = _realm()
    for number, host in enumerate(hosts):
        host.client(1, b"host/h%d/net/" % ((number + 1) % HOSTS))
    world.run(0.3)
    sent = world.sent.copy()

    joined = world.host("late", RULES)
    joined.client(1, b"host/*/net/x")
    world.run(3.2)
    sent = world.sent - sent
    assert len(joined.session.live_hosts()) == HOSTS
    # It and each other host: a request, a snapshot and a confirmation, both ways. What it wanted before it connected needs no announcement.
    assert sent["i"] == 0
    assert sent["x"] <= 6 * HOSTS
    # A heartbeat of each host in 2.4 seconds, because there are 120.
    assert sent["h"] <= 3 * (HOSTS + 1)
    hosts[5].message(b"net/x", b"1")
    world.run(0.2)
    assert joined.clients[1].received == [(b"host/h5/net/x", b"1")]
