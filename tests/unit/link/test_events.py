"""Events about hosts, the network and losses, bounded however much happens."""

from __future__ import annotations

import json

from sbusd.link.events import MAX_ORIGINS, MAX_PATTERNS, Events, encode
from sbusd.link.network.counters import NetworkState

AWAY = NetworkState(connected=False, encrypted=True, authenticated=True)
THERE = NetworkState(connected=True, encrypted=True, authenticated=True, server="tls://nats-1")


def test_each_change_of_hosts_and_network_is_one_event() -> None:
    events = Events()
    assert events.take([], AWAY, "") == []
    assert events.take(["beta", "gamma"], THERE, "") == [
        ("link/network", {"event": "up", "server": "tls://nats-1"}),
        ("link/host/beta", {"event": "up", "host": "beta"}),
        ("link/host/gamma", {"event": "up", "host": "gamma"}),
    ]
    assert events.take(["beta", "gamma"], THERE, "") == []
    assert events.take(["gamma"], THERE, "") == [("link/host/beta", {"event": "down", "host": "beta", "reason": "no heartbeats"})]
    events.take(["beta", "gamma"], THERE, "")
    assert events.take(["delta"], AWAY, "Connection refused") == [
        ("link/network", {"event": "down", "reason": "Connection refused"}),
        ("link/host/beta", {"event": "down", "host": "beta", "reason": "network unavailable"}),
        ("link/host/gamma", {"event": "down", "host": "gamma", "reason": "network unavailable"}),
        ("link/host/delta", {"event": "up", "host": "delta"}),
    ]


def test_losses_of_a_host_are_one_event() -> None:
    events = Events()
    events.lost("beta", [b"host/beta/a/"], 3)
    events.lost("beta", [b"host/*/a/", b"host/beta/\xff"], 2)
    events.lost("gamma", [b"host/"], 2)
    events.lost("gamma", [b"host/"], 0)
    events.lost("", [b"host/"], 0)
    assert events.take([], AWAY, "") == [
        ("link/lost/beta", {"host": "beta", "patterns": ["host/*/a/", "host/beta/a/", "host/beta/\\xff"], "count": 5}),
        ("link/lost/gamma", {"host": "gamma", "patterns": ["host/"], "count": 0}),
        ("link/lost", {"host": "", "patterns": ["host/"], "count": 0}),
    ]
    assert events.take([], AWAY, "") == []


def test_many_losses_take_bounded_memory() -> None:
    events = Events()
    for number in range(2 * MAX_ORIGINS):
        events.lost(f"h{number}", [b"host/%d/%d" % (number, each) for each in range(2 * MAX_PATTERNS)], 1)
        events.lost(f"h{number}", [b"again"], 1)
    taken = events.take([], AWAY, "")
    assert len(taken) == MAX_ORIGINS + 1
    assert sum(int(str(words["count"])) for _, words in taken) == 4 * MAX_ORIGINS
    assert all(len(json.loads(encode(each))["patterns"]) == MAX_PATTERNS for each in taken)
