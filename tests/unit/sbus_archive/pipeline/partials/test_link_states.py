"""States of a link are read whole or not at all; their members are those that the link publishes."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.pipeline.partials.link_states import (
    HOST_REJECTED,
    LINK_DROPPED,
    LINK_REJECTED,
    MAX_COUNT,
    NETWORK_DROPPED,
    NETWORK_REJECTED,
    UNIT,
    Entry,
    LinkState,
    read_state,
)
from sbus_services.link.administration import Status
from sbus_services.link.counters import HostCounters, LinkCounters
from sbus_services.link.network.counters import NetworkCounters, NetworkState
from sbus_services.link.peers import HostState
from sbus_services.link.rules import Rules
from sbus_services.link.session import LinkSession
from tests.support.link_states import INVALID, link_state, other_host
from tests.unit.sbus_services.link.test_administration import FakeSession
from tools.stage import ROOT


def read(**changes: Any) -> LinkState | None:
    return read_state(json.dumps(link_state(**changes)).encode())


@pytest.mark.parametrize(
    ("names", "counters"),
    [
        (HOST_REJECTED, HostCounters),
        (LINK_REJECTED, LinkCounters),
        (LINK_DROPPED, LinkCounters),
        (NETWORK_REJECTED, NetworkCounters),
        (NETWORK_DROPPED, NetworkCounters),
    ],
)
def test_the_link_has_these_counters(names: tuple[str, ...], counters: type) -> None:
    assert set(names) <= {each.name for each in fields(counters)}


def test_a_state_is_read() -> None:
    network = link_state()["network"] | {"connects": 4, "dropped": 1, "oversize": 2, "forged": 10, "ended_handshakes": 100}
    counters = link_state()["counters"] | {"spool_dropped": 4, "hosts_refused": 20}
    found = read(
        started=1_790_000_000.5,
        network=network,
        counters=counters,
        spooled_bytes=77,
        bus_refusals=40,
        discarded_messages=8,
        hosts=[other_host("beta", alive=False, messages=5, lost=1, malformed=1, stale=2, silences=3)],
        hosts_omitted=2,
        later="unknown",
    )
    own = Entry("", True, rejected=170, disconnects=3, dropped=15)
    beta = Entry("beta", False, messages=5, lost=1, rejected=3, disconnects=3)
    assert found == LinkState("R", "alpha", 1_790_000_000_500_000_000, 77, 2, [own, beta])


def test_what_the_link_publishes_is_a_state() -> None:
    beta = HostState("beta", True, 0.5, 3, 2, "192.0.2.1", HostCounters(messages=9))
    hosts = [beta, HostState("gamma", False, 7.0, 0, 0, "", HostCounters())]
    network = NetworkState(connected=True, encrypted=True, authenticated=True)
    counters = {"bus_refusals": 1, "discarded_messages": 2}
    made = Status(Rules("R", "alpha"), "nats").state(
        cast(LinkSession, FakeSession(hosts)), network, NetworkCounters(connects=2), counters, now=5.0
    )
    found = read_state(made)
    assert found is not None
    assert (found.realm, found.link, found.spooled, found.omitted) == ("R", "alpha", 3, 0)
    own = Entry("", True, rejected=1, disconnects=1, dropped=2)
    assert found.entries == [own, Entry("beta", True, messages=9), Entry("gamma", False)]


def test_direct_connections_have_no_counter_of_disconnects() -> None:
    found = read(transport="direct")
    assert found is not None
    assert found.entries[0].disconnects is None


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"realm": ""},
        {"host": "a/b"},
        {"host": "a" * 64},
        {"host": "\ud800"},
        {"started": float("inf")},
        {"started": float("nan")},
        {"started": -1},
        {"started": 1e10},
        {"started": True},
        {"spooled_bytes": -1},
        {"spooled_bytes": 1.0},
        {"spooled_bytes": True},
        {"bus_refusals": MAX_COUNT + 1},
        {"network": []},
        {"network": {}},
        {"network": link_state()["network"] | {"connected": 1}},
        {"counters": None},
        {"hosts": None},
        {"hosts": [7]},
        {"hosts": [other_host("")]},
        {"hosts": [other_host("beta"), other_host("beta")]},
        {"hosts": [other_host("beta") | {"alive": None}]},
        {"hosts": [{"name": "beta", "alive": True}]},
        {"hosts_omitted": None},
    ],
)
def test_an_invalid_member_makes_the_state_invalid(changes: dict[str, Any]) -> None:
    assert read() is not None
    assert read(**changes) is None


@pytest.mark.parametrize("payload", INVALID)
def test_what_is_not_a_state_is_not_read(payload: bytes | None) -> None:
    assert read_state(payload) is None


def test_a_truncated_state_is_not_read() -> None:
    whole = json.dumps(link_state(hosts=[other_host("beta")])).encode()
    assert read_state(whole) is not None
    assert all(read_state(whole[:length]) is None for length in range(len(whole)))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from([*link_state(), "hosts_omitted"]), _JSON))
def test_any_members_give_a_state_within_its_bounds_or_none(changes: dict[str, Any]) -> None:
    found = read(**changes)
    if found is not None:
        assert 0 <= found.started < 2**63
        assert 0 <= found.spooled <= MAX_COUNT


@given(st.binary(max_size=40))
def test_any_bytes_are_harmless(payload: bytes) -> None:
    assert read_state(payload) is None


def test_all_counters_of_a_host_can_be_large() -> None:
    found = read(hosts=[other_host("beta") | dict.fromkeys(asdict(HostCounters()), MAX_COUNT)])
    assert found is not None
    assert found.entries[1].rejected == len(HOST_REJECTED) * MAX_COUNT


def test_the_unit_of_the_link_is_installed() -> None:
    assert (ROOT / "units" / "system" / UNIT).exists()
