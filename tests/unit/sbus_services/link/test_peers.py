"""Which hosts are known and alive."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sbus_services.link import peers
from sbus_services.link.blob_tickets import BlobTickets
from sbus_services.link.counters import HostCounters, LinkCounters
from sbus_services.link.frames import Data, Head, Heartbeat, Line, SnapshotRequest
from sbus_services.link.incoming import Incoming
from sbus_services.link.peers import (
    MAX_INTERVAL,
    MIN_INTERVAL,
    NumberedNetwork,
    Peer,
    Peers,
    is_private,
)
from sbus_services.link.ports import LINK
from sbus_services.link.rules import Import, Rules
from sbus_services.link.subjects import Arrival
from tests.support.link_bodies import join_body, sent
from tests.support.link_recorders import RecordedNetwork

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


class _Sent(RecordedNetwork):
    """Keeps whole heads."""

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        self.frames.append((subject, head, body))


def test_all_frames_share_one_count() -> None:
    network = _Sent()
    numbered = NumberedNetwork(network)
    numbered.subscribe("s")
    numbered.publish("s.R.h.a", b"H/1", b"")
    numbered.publish("s.R.x.b.a", b"Q/1/0", b"body")
    numbered.barrier(3)
    numbered.unsubscribe("s")
    assert network.frames == [("s.R.h.a", b"2/H/1/1", b""), ("s.R.x.b.a", b"2/Q/1/0/2", b"body")]
    assert (network.barriers, +network.subjects) == ([3], {})


@pytest.mark.parametrize(
    ("head", "counted"),
    [(Data(1, 2, 3, 4), (4, 0)), (Heartbeat(1, 2, 3, 4, 5, 6, 7), (0, 1)), (SnapshotRequest(1, 0), (0, 1))],
)
@pytest.mark.parametrize("late", [1, 4, 5])
def test_a_frame_that_comes_after_later_ones_is_counted(head: Head, counted: tuple[int, int], late: int) -> None:
    peer = Peer("b", HostCounters(), _no_incoming())
    assert peer.is_next(5)
    assert not peer.is_next(late)
    peer.count_late(head)
    assert (peer.counters.duplicates, peer.counters.stale) == counted
    assert peer.is_next(9)
    assert peer.serial == 9


@pytest.mark.parametrize(
    ("kind", "head", "key", "expected"),
    [
        ("x", Data(1, 1, 1, 1), b"!/cred//1000//mail", True),
        ("x", Data(1, 1, 1, 1), b"only/x", False),
        ("m", Data(1, 1, 1, 1), b"!/cred//1000//mail", False),
        ("x", Data(1, 1, 1, 0), b"!/cred//1000//mail", False),
        ("x", SnapshotRequest(1, 0), b"!/cred//1000//mail", False),
    ],
)
def test_private_messages_are_known(kind: str, head: Head, key: bytes, expected: bool) -> None:
    assert is_private(Arrival(kind, "b"), head, join_body([sent(key, b"x")])) == expected


def _beat(epoch: int) -> Heartbeat:
    return Heartbeat(epoch, 1, 2_000, 0, 0, 0, 1)


def test_an_earlier_run_is_present_if_its_heartbeats_go_on_while_the_other_is_silent() -> None:
    peer = Peer("b", HostCounters(), _no_incoming(), epoch=9)
    assert [peer.is_earlier_run_present(_beat(5), clock) for clock in (10.0, 10.0, 12.0, 14.0, 16.0)] == [False, False, False, False, True]


def test_late_frames_of_an_earlier_run_are_not_the_present_run() -> None:
    peer = Peer("b", HostCounters(), _no_incoming(), epoch=9)
    assert not peer.is_earlier_run_present(_beat(5), 10.0)
    assert not peer.is_earlier_run_present(Data(5, 1, 1, 1), 30.0), "only a heartbeat shows that it lives"
    assert not peer.is_earlier_run_present(_beat(4), 30.0)
    peer.is_alive = True
    assert not peer.is_earlier_run_present(_beat(4), 90.0)


def _no_incoming() -> Incoming:
    """Return what these tests never use."""
    return Incoming.__new__(Incoming)
