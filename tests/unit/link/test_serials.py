"""Frames are numbered when they are sent, and those that come after later ones are counted and ignored."""

from __future__ import annotations

import pytest

from sbusd.link.counters import HostCounters
from sbusd.link.frames import Data, Head, Heartbeat, SnapshotRequest
from sbusd.link.incoming import Incoming
from sbusd.link.peers import Peer
from sbusd.link.ports import LINK
from sbusd.link.serials import NumberedNetwork, count_late, is_earlier_run_present, is_next, is_private
from sbusd.link.subjects import Arrival
from tests.support.link_bodies import join_body, sent
from tests.support.link_recorders import RecordedNetwork


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
    assert is_next(peer, 5)
    assert not is_next(peer, late)
    count_late(peer, head)
    assert (peer.counters.duplicates, peer.counters.stale) == counted
    assert is_next(peer, 9)
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
    assert [is_earlier_run_present(peer, _beat(5), clock) for clock in (10.0, 10.0, 12.0, 14.0, 16.0)] == [False, False, False, False, True]


def test_late_frames_of_an_earlier_run_are_not_the_present_run() -> None:
    peer = Peer("b", HostCounters(), _no_incoming(), epoch=9)
    assert not is_earlier_run_present(peer, _beat(5), 10.0)
    assert not is_earlier_run_present(peer, Data(5, 1, 1, 1), 30.0), "only a heartbeat shows that it lives"
    assert not is_earlier_run_present(peer, _beat(4), 30.0)
    peer.is_alive = True
    assert not is_earlier_run_present(peer, _beat(4), 90.0)


def _no_incoming() -> Incoming:
    """Return what these tests never use."""
    return Incoming.__new__(Incoming)
