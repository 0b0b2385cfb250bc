"""What hosts want, and the subscriptions that follow."""

from __future__ import annotations

import pytest

from sbus_services.link import remote_interest
from sbus_services.link.frames import Line
from sbus_services.link.remote_interest import RemoteInterest
from sbus_services.link.rules import Export, Rules
from tests.support.link_recorders import RecordedBus

OPEN, LIMITED = Export(b"net/"), Export(b"only/", frozenset({"b"}))
RULES = Rules("R", "a", (OPEN, LIMITED))


def test_only_the_part_that_may_leave_is_subscribed() -> None:
    bus = RecordedBus()
    interest = RemoteInterest(RULES, bus)
    for host in ("b", "c"):
        assert interest.want(host, Line(b"*", b""))
    assert bus.patterns == {b"net/": 1, b"only/": 1}
    interest.withdraw("b", Line(b"*", b""))
    assert bus.patterns == {b"net/": 1}
    interest.forget("c")
    assert not bus.patterns
    assert (interest.lines("c"), interest.subscriptions()) == (set(), [])


def test_a_pattern_counts_once_it_is_applied() -> None:
    interest = RemoteInterest(RULES, RecordedBus())
    interest.want("b", Line(b"*", b"net/"))
    assert interest.match(b"net/x", OPEN) == []
    interest.apply("b", {b"net/"})
    before = interest.match(b"net/x", OPEN)
    assert [target for target, _ in before] == [None]
    interest.want("c", Line(b"*", b"net/"))
    assert interest.match(b"net/x", OPEN) == before
    interest.apply("c", {b"net/"})
    # Another generation: c does not join the flow of b.
    assert interest.match(b"net/x", OPEN) != before
    after = interest.match(b"net/x", OPEN)
    interest.withdraw("b", Line(b"*", b"net/"))
    assert interest.match(b"net/x", OPEN) == after


def test_a_limited_export_matches_for_its_hosts_alone() -> None:
    interest = RemoteInterest(RULES, RecordedBus())
    for host in ("b", "c"):
        interest.want(host, Line(b"*", b""))
        interest.apply(host, interest.waiting(host))
    assert [target for target, _ in interest.match(b"only/x", LIMITED)] == ["b"]


def test_a_host_that_joins_again_waits() -> None:
    bus = RecordedBus()
    interest = RemoteInterest(RULES, bus)
    interest.want("b", Line(b"*", b"net/"))
    interest.apply("b", {b"net/"})
    interest.rejoin("b")
    assert (interest.match(b"net/x", OPEN), interest.waiting("b"), bus.patterns) == ([], {b"net/"}, {b"net/": 1})


def test_each_host_can_use_at_most_as_much_as_it_leaves_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_interest, "MAX_ALL_PATTERNS", 100)
    interest = RemoteInterest(RULES, RecordedBus())
    accepted = [sum(interest.want(host, Line(b"*", b"net/%d" % number)) for number in range(200)) for host in "bcd"]
    assert accepted == [50, 25, 13]


def test_the_bytes_of_patterns_are_bounded() -> None:
    interest = RemoteInterest(RULES, RecordedBus())
    accepted = sum(interest.want("b", Line(b"*", b"net/%d/" % number + b"x" * 4_000)) for number in range(1_000))
    assert accepted * 4_000 < remote_interest.MAX_PATTERN_BYTES
    assert accepted > 200


def test_a_pattern_stays_until_its_last_line_is_withdrawn() -> None:
    bus = RecordedBus()
    interest = RemoteInterest(RULES, bus)
    interest.want("b", Line(b"*", b"net/"))
    interest.apply("b", {b"net/"})
    before = interest.match(b"net/x", OPEN)
    interest.want("b", Line(b"a", b"net/"))
    assert interest.match(b"net/x", OPEN) == before
    interest.apply("b", interest.waiting("b"))
    # The second line counts from the beginning of a flow.
    assert interest.match(b"net/x", OPEN) != before
    assert interest.withdraw("b", Line(b"a", b"net/")) is False
    assert (len(interest.match(b"net/x", OPEN)), bus.patterns) == (1, {b"net/": 1})
    assert interest.withdraw("b", Line(b"*", b"net/")) is True
    assert (interest.match(b"net/x", OPEN), bus.patterns) == ([], {})
