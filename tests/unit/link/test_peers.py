"""Which hosts are known and alive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sbusd.link import peers
from sbusd.link.blob_tickets import BlobTickets
from sbusd.link.counters import LinkCounters
from sbusd.link.frames import Line
from sbusd.link.incoming import Incoming
from sbusd.link.peers import MAX_INTERVAL, MIN_INTERVAL, Peers
from sbusd.link.rules import Import, Rules

RULES = Rules("R", "b", imports=(Import(b"", None),))


class _Discard:
    """`Deliver` for hosts of which nothing arrives."""

    def publish(self, body: bytes, count: int) -> None:
        raise AssertionError(body, count)

    def report_lost(self, lines: Iterable[Line], count: int) -> None:
        raise AssertionError(lines, count)

    def moment(self) -> tuple[float, int]:
        return 0.0, 0


def _peers() -> tuple[Peers, LinkCounters]:
    counters = LinkCounters()
    return Peers(
        RULES, counters, lambda name, each: Incoming(RULES, name, lambda _: [], _Discard(), each, tickets=BlobTickets(lambda: 0.0))
    ), counters


def test_a_host_is_gone_after_three_heartbeats() -> None:
    known, counters = _peers()
    peer = known.find("a")
    assert peer is not None
    known.note_heartbeat(peer)
    for _ in range(3):
        known.advance(2.0)
        assert known.silent() == []
    known.advance(0.1)
    assert (known.silent(), known.is_alive("a"), counters.hosts["a"].silences) == ([peer], False, 1)
    assert known.silent() == []


def test_a_long_sleep_counts_as_one_heartbeat() -> None:
    known, _ = _peers()
    known.advance(1e6)
    known.advance(-5.0)
    assert known.clock == MIN_INTERVAL


def test_heartbeats_are_rarer_in_a_large_realm() -> None:
    known, _ = _peers()
    for number in range(300):
        peer = known.find(f"h{number}")
        assert peer is not None
        known.note_heartbeat(peer)
        known.note_heartbeat(peer)
    assert known.interval == 6.0
    assert MIN_INTERVAL <= known.interval <= MAX_INTERVAL


def test_a_new_host_takes_the_record_of_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 2)
    known, counters = _peers()
    first, second = known.find("a"), known.find("c")
    assert first is not None
    assert second is not None
    known.note_heartbeat(first)
    assert known.find("d") is not None
    assert (known.get("c"), known.get("a"), sorted(counters.hosts)) == (None, first, ["a", "d"])
    last = known.get("d")
    assert last is not None
    known.note_heartbeat(last)
    assert (known.find("e"), counters.hosts_refused) == (None, 1)
