"""Flows and what heartbeats list of them."""

from __future__ import annotations

from sbus_services.link.flows import LISTED, MAX_FLOWS, FlowTable
from sbus_services.link.frames import Tail, parse_tails


def test_the_same_patterns_are_the_same_flow() -> None:
    table = FlowTable()
    flow = table.find(None, [b"a", b"b"], b"k")
    assert table.find(None, [b"a", b"b"], b"other") is flow
    assert len({flow.number, table.find(None, [b"ab"], b"k").number, table.find("x", [b"a", b"b"], b"k").number}) == 3


def test_the_last_number_is_listed_in_three_heartbeats() -> None:
    table = FlowTable()
    flow = table.find(None, [b"a"], b"k")
    flow.take()
    table.mark(flow)
    assert [list(parse_tails(table.tails(None))) for _ in range(LISTED + 1)] == [[Tail(1, 1, b"k")]] * LISTED + [[]]
    assert table.targets() == []


def test_flows_of_one_host_are_listed_to_it_alone() -> None:
    table = FlowTable()
    flow = table.find("x", [b"a"], b"k")
    flow.take()
    table.mark(flow)
    assert (table.tails(None), table.targets(), list(parse_tails(table.tails("x")))) == (b"", ["x"], [Tail(1, 1, b"k")])
    table.forget("x")
    assert table.targets() == []


def test_the_oldest_flow_ends_when_there_are_too_many() -> None:
    table = FlowTable()
    first = table.find(None, [b"0"], b"k")
    first.take()
    table.mark(first)
    for number in range(1, MAX_FLOWS + 1):
        table.find(None, [b"%d" % number], b"k")
    assert (table.floor, table.cut, table.ended) == (2, 1, 1)
    assert table.find(None, [b"0"], b"k").number == MAX_FLOWS + 2


def test_a_body_of_tails_is_bounded_and_the_rest_follows() -> None:
    table = FlowTable()
    for number in range(40):
        flow = table.find(None, [b"%d" % number], b"k" * 4_000)
        flow.take()
        table.mark(flow)
    bodies = [table.tails(None) for _ in range(10)]
    assert max(map(len, bodies)) <= 65_536
    assert sorted(tail.flow for body in bodies for tail in parse_tails(body)) == sorted(list(range(1, 41)) * LISTED)
