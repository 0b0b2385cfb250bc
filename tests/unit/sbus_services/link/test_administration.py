"""Events about hosts, the network and losses, bounded however much happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus_programs.config.certificates import validity_of
from sbus_services.link.administration import CERTIFICATE_SECONDS, MAX_HOSTS, MAX_ORIGINS, MAX_PATTERNS, Events, Status, encode
from sbus_services.link.counters import HostCounters, LinkCounters
from sbus_services.link.network.counters import NetworkCounters, NetworkState
from sbus_services.link.peers import HostState
from sbus_services.link.rules import Rules
from sbus_services.link.session import LinkSession
from tests.support.authority import Authority

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


NETWORK = NetworkState(connected=True, encrypted=True, authenticated=True, server="tls://nats-1", server_version="2.12.7")


class FakeSession:
    """A session with *hosts*."""

    def __init__(self, hosts: list[HostState]) -> None:
        self.counters = LinkCounters(messages=7)
        self.spooled_bytes = 3
        self._hosts = hosts

    def hosts(self) -> list[HostState]:
        """Return the hosts."""
        return self._hosts


def state(hosts: list[HostState]) -> dict[str, Any]:
    """Return the state of a link with *hosts*."""
    status = Status(Rules("R", "alpha"), "nats")
    made = status.state(cast(LinkSession, FakeSession(hosts)), NETWORK, NetworkCounters(connects=2), {"bus_refusals": 1}, 5.0)
    # A response carries it in base64, inside of an envelope.
    assert len(made) * 4 / 3 + 4_096 < MAX_PACKET_BYTES
    return cast("dict[str, Any]", json.loads(made))


def test_the_state_has_the_network_the_counters_and_the_hosts() -> None:
    made = state([HostState("beta", True, 0.5, 3, 2, "192.0.2.1", HostCounters(messages=9, lost=1))])
    assert (made["realm"], made["host"], made["transport"], made["version"]) == ("R", "alpha", "nats", 1)
    assert made["started"] <= made["time"]
    assert made["network"]["server_version"] == "2.12.7"
    assert made["network"]["connects"] == 2
    assert (made["spooled_bytes"], made["bus_refusals"], made["counters"]["messages"]) == (3, 1, 7)
    assert "hosts" not in made["counters"]
    (beta,) = made["hosts"]
    assert [beta[each] for each in ("name", "alive", "silent_seconds", "patterns_there", "patterns_here", "messages", "lost")] == [
        "beta", True, 0.5, 3, 2, 9, 1,
    ]  # fmt: skip
    assert made["hosts_omitted"] == 0


def test_a_large_realm_fits_into_a_packet() -> None:
    counters = HostCounters(**dict.fromkeys(HostCounters.__dataclass_fields__, 10**9))
    hosts = [HostState(f"{number:063}", number >= 1_000, 123.456789, 4_096, 4_096, "192.0.2.1", counters) for number in range(1_024)]
    made = state(hosts)
    assert len(made["hosts"]) == MAX_HOSTS
    assert made["hosts_omitted"] == 1_024 - MAX_HOSTS
    assert sum(each["alive"] for each in made["hosts"]) == 24


def test_a_state_is_made_once_in_a_second() -> None:
    status = Status(Rules("R", "alpha"), "nats")
    session = FakeSession([])

    def spooled(now: float) -> int:
        made = status.state(cast(LinkSession, session), NETWORK, NetworkCounters(), {}, now)
        return int(json.loads(made)["spooled_bytes"])

    assert spooled(10.0) == 3
    session.spooled_bytes = 4
    assert spooled(10.9) == 3
    assert spooled(11.0) == 4


@pytest.mark.slow  # openssl signs the certificate
def test_the_state_has_the_end_of_the_certificate_also_of_a_renewed_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file = authority.sign("alpha", days=30).certificate
    status = Status(Rules("R", "alpha"), "nats", file)

    def end(now: float) -> float | None:
        made = status.state(cast(LinkSession, FakeSession([])), NETWORK, NetworkCounters(), {}, now)
        return cast("float | None", json.loads(made)["certificate_end"])

    first = validity_of(file)
    assert first is not None
    assert end(0.0) == first[1]
    file.unlink()
    assert end(CERTIFICATE_SECONDS - 1) == first[1]
    assert end(CERTIFICATE_SECONDS) is None
    renewed = validity_of(authority.sign("alpha", days=60).certificate)
    assert renewed is not None
    assert end(2 * CERTIFICATE_SECONDS) == renewed[1] > first[1]
    assert state([])["certificate_end"] is None
