"""The events that follow from messages of the kernel, captured and made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.feeds.netlink.entries import Address, Attributes, Entry, Hop, Link, Neighbour, Route
from sbus_services.feeds.netlink.network_state import EventKind, NetworkEvent, NetworkState
from sbus_services.feeds.netlink.notices import Notice
from tests.support.netlink_captures import captured, notices_of

LO = Link(1, b"lo", "unknown", ("up",), 65536, None, None, None)
ETH = Link(2, b"eth0", "up", ("up",), 1500, "02:00:00:00:00:01", None, None)
ADDRESS = Address(2, "inet", "10.0.0.1", None, 24, "global", ("permanent",), "10.0.0.255", "eth0")
ROUTE = Route("inet", "main", "default", None, 0, 0, "unicast", "global", "boot", 2, "10.0.0.254", None, (), ())
NEIGHBOUR = Neighbour(2, "inet", "10.0.0.254", "02:00:00:00:00:02", "reachable", ())


def state_of(*entries: Entry) -> NetworkState:
    state = NetworkState()
    state.reconcile(entries)
    return state


def reported(events: list[NetworkEvent]) -> list[tuple[str, str]]:
    return [(event.kind.value, event.key) for event in events]


def test_repeated_entry_is_published_once() -> None:
    state = NetworkState()
    assert reported(state.apply(Notice(ETH))) == [("new", "net/link/eth0")]
    assert state.apply(Notice(ETH)) == []


def test_change_has_the_current_attributes() -> None:
    state = state_of(ETH)
    [event] = state.apply(Notice(replace(ETH, mtu=9000)))
    assert (event.kind, event.key, event.attributes["mtu"]) == (EventKind.CHANGE, "net/link/eth0", 9000)


def test_removal_is_published_once() -> None:
    state = state_of(LO, ETH, ADDRESS)
    assert reported(state.apply(Notice(ADDRESS, gone=True))) == [("remove", "net/address/eth0/10.0.0.1%2F24")]
    assert state.apply(Notice(ADDRESS, gone=True)) == []


def test_prefix_lengths_stand_side_by_side() -> None:
    state = state_of(ETH, ADDRESS)
    wider = replace(ADDRESS, prefix_length=16)
    assert reported(state.apply(Notice(wider))) == [("new", "net/address/eth0/10.0.0.1%2F16")]
    assert reported(state.apply(Notice(ADDRESS, gone=True))) == [("remove", "net/address/eth0/10.0.0.1%2F24")]
    assert len(state) == 2


def test_rename_moves_everything_that_has_the_name() -> None:
    state = state_of(LO, ETH, ADDRESS, ROUTE, NEIGHBOUR)
    events = state.apply(Notice(replace(ETH, name=b"wan")))
    assert reported(events) == [
        ("remove", "net/neighbour/eth0/10.0.0.254"),
        ("remove", "net/address/eth0/10.0.0.1%2F24"),
        ("remove", "net/link/eth0"),
        ("new", "net/link/wan"),
        ("new", "net/address/wan/10.0.0.1%2F24"),
        ("change", "net/route/main/default"),
        ("new", "net/neighbour/wan/10.0.0.254"),
    ]
    assert events[5].attributes["name"] == "wan"


def test_two_links_that_swap_names_never_share_a_key() -> None:
    state = state_of(ETH, replace(ETH, index=3, name=b"eth1"))
    present = {"net/link/eth0": 2, "net/link/eth1": 3}
    swap = [replace(ETH, name=b"tmp"), replace(ETH, index=3, name=b"eth0"), replace(ETH, name=b"eth1")]
    for event in [event for link in swap for event in state.apply(Notice(link))]:
        if event.kind is EventKind.REMOVE:
            del present[event.key]
        else:
            assert event.key not in present
            index = event.attributes["index"]
            assert isinstance(index, int)
            present[event.key] = index
    assert present == {"net/link/eth0": 3, "net/link/eth1": 2}


def test_a_removed_link_removes_all_dependent_objects() -> None:
    several = replace(ROUTE, destination="10.7.0.0/16", index=None, gateway=None, hops=(Hop(2, "10.0.0.2", 1), Hop(1, None, 1)))
    state = state_of(LO, ETH, ADDRESS, ROUTE, several, NEIGHBOUR)
    events = state.apply(Notice(ETH, gone=True))
    assert reported(events) == [
        ("remove", "net/neighbour/eth0/10.0.0.254"),
        ("remove", "net/route/main/default"),
        ("remove", "net/address/eth0/10.0.0.1%2F24"),
        ("remove", "net/link/eth0"),
        ("change", "net/route/main/10.7.0.0%2F16"),
    ]
    assert state.is_uncertain, "what else the kernel dropped is not known"


def test_removal_has_the_last_attributes() -> None:
    state = state_of(ETH, ADDRESS)
    events = state.apply(Notice(ETH, gone=True))
    assert [event.attributes["name"] for event in events] == ["eth0", "eth0"]


@pytest.mark.parametrize(
    "notice",
    [
        Notice(replace(ETH, flags=())),
        Notice(ADDRESS, gone=True),
        Notice(replace(ROUTE, metric=7), gone=True),
        Notice(replace(ROUTE, gateway="10.0.0.9"), is_partial=True),
        Notice(replace(ADDRESS, index=9)),
    ],
    ids=["link went down", "address went", "unknown route went", "route replaced", "link unknown"],
)
def test_what_leaves_something_open(notice: Notice) -> None:
    state = state_of(ETH, ADDRESS, ROUTE)
    state.apply(notice)
    assert state.is_uncertain
    state.reconcile([])
    assert not state.is_uncertain


@pytest.mark.parametrize("notice", [Notice(replace(ETH, mtu=9000)), Notice(NEIGHBOUR, gone=True), Notice(replace(ROUTE, metric=7))])
def test_what_leaves_nothing_open(notice: Notice) -> None:
    state = state_of(ETH, ADDRESS, ROUTE)
    state.apply(notice)
    assert not state.is_uncertain


def test_a_replaced_route_is_removed_before_the_new_one_is_added() -> None:
    state = state_of(ETH, ADDRESS, ROUTE)
    other = replace(ROUTE, gateway="10.0.0.9")
    assert state.apply(Notice(other, is_partial=True)) == []
    events = state.reconcile([ETH, ADDRESS, other])
    assert [(event.kind, event.attributes["gateway"]) for event in events] == [
        (EventKind.REMOVE, "10.0.0.254"),
        (EventKind.NEW, "10.0.0.9"),
    ]


def test_reconcile_returns_only_the_difference() -> None:
    state = state_of(LO, ETH, ADDRESS, ROUTE)
    events = state.reconcile([replace(LO, mtu=1500), ETH, ROUTE, NEIGHBOUR])
    assert reported(events) == [
        ("remove", "net/address/eth0/10.0.0.1%2F24"),
        ("change", "net/link/lo"),
        ("new", "net/neighbour/eth0/10.0.0.254"),
    ]
    assert state.reconcile([replace(LO, mtu=1500), ETH, ROUTE, NEIGHBOUR]) == []


def test_entry_of_an_unknown_link_waits_for_its_message() -> None:
    state = state_of(LO, replace(ADDRESS, index=9))
    assert len(state) == 1
    state.apply(Notice(replace(ETH, index=9)))
    assert reported(state.apply(Notice(replace(ADDRESS, index=9)))) == [("new", "net/address/eth0/10.0.0.1%2F24")]


def test_snapshot_has_links_first_and_changes_nothing() -> None:
    state = NetworkState()
    for entry in (ETH, ADDRESS, NEIGHBOUR, ROUTE, LO):
        state.apply(Notice(entry))
    wanted = [
        "net/link/eth0",
        "net/link/lo",
        "net/address/eth0/10.0.0.1%2F24",
        "net/route/main/default",
        "net/neighbour/eth0/10.0.0.254",
    ]
    assert [event.key for event in state.snapshot()] == wanted
    assert state.snapshot() == state.snapshot()
    assert {event.kind for event in state.snapshot()} == {EventKind.SNAPSHOT}
    assert len(state) == 5


def test_captured_events_end_with_the_tables_of_the_kernel() -> None:
    """Replay the whole capture: it ends with lo, br*!, and the bridge with the odd name; events always match the state."""
    state = NetworkState()
    present: set[tuple[str, str]] = set()
    for command in captured():
        for notice in notices_of(command):
            for event in state.apply(notice):
                known = (event.key, str(event.attributes.get("family")) + str(event.attributes.get("metric")))
                if event.kind is EventKind.NEW:
                    present.add(known)
                elif event.kind is EventKind.REMOVE:
                    present.discard(known)
                else:
                    assert known in present
    links = {key for key, _ in present if key.startswith("net/link/")}
    assert links == {"net/link/lo", "net/link/br%2A%21", "net/link/x%FFy"}
    assert {key for key, _ in present if key.startswith("net/address/")} == {"net/address/lo/127.0.0.1%2F8", "net/address/lo/::1%2F128"}


LINKS = [replace(ETH, index=index, name=name, mtu=mtu) for index, name in ((2, b"a"), (2, b"b"), (3, b"c"), (3, b"d*")) for mtu in (1, 2)]
CHILDREN: list[Entry] = [
    made
    for index in (2, 3)
    for made in (
        replace(ADDRESS, index=index),
        replace(NEIGHBOUR, index=index),
        replace(ROUTE, index=index, destination=f"10.{index}.0.0/16"),
    )
]
NOTICES = st.builds(Notice, st.sampled_from([*LINKS, *CHILDREN]), gone=st.booleans())
TABLES = st.lists(st.sampled_from([*LINKS, *CHILDREN]), max_size=6)


@given(st.lists(st.one_of(NOTICES, TABLES), max_size=30))
def test_events_lead_to_the_state_of_a_snapshot(life: list[Notice | list[Entry]]) -> None:
    state = NetworkState()
    known: dict[str, Attributes] = {}
    for step in life:
        for event in state.apply(step) if isinstance(step, Notice) else state.reconcile(step):
            if event.kind is EventKind.REMOVE:
                assert known.pop(event.key) == event.attributes
            else:
                assert (event.key in known) == (event.kind is EventKind.CHANGE)
                assert known.get(event.key) != event.attributes
                known[event.key] = event.attributes
        assert known == {event.key: event.attributes for event in state.snapshot()}
