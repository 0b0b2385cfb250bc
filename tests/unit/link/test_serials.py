"""Frames are numbered when they are sent, and those that come after later ones are counted and ignored."""

from __future__ import annotations

import pytest

from sbusd.link.counters import HostCounters
from sbusd.link.frames import Data, Head, Heartbeat, Request
from sbusd.link.incoming import Incoming
from sbusd.link.peers import Peer
from sbusd.link.serials import NumberedNetwork, is_next
from tests.support.link_recorders import RecordedNetwork


class _Sent(RecordedNetwork):
    """Keeps whole heads."""

    def publish(self, subject: str, head: bytes, body: bytes) -> None:
        self.frames.append((subject, head, body))


def test_all_frames_share_one_count() -> None:
    network = _Sent()
    numbered = NumberedNetwork(network)
    numbered.subscribe("s")
    numbered.publish("s.R.h.a", b"H/1", b"")
    numbered.publish("s.R.x.b.a", b"Q/1/0", b"body")
    numbered.barrier(3)
    numbered.unsubscribe("s")
    assert network.frames == [("s.R.h.a", b"H/1/1", b""), ("s.R.x.b.a", b"Q/1/0/2", b"body")]
    assert (network.barriers, +network.subjects) == ([3], {})


@pytest.mark.parametrize(
    ("head", "counted"),
    [(Data(1, 2, 3, 4), (4, 0)), (Heartbeat(1, 2, 3, 4, 5, 6, 7), (0, 1)), (Request(1, 0), (0, 1))],
)
@pytest.mark.parametrize("late", [1, 4, 5])
def test_a_frame_that_comes_after_later_ones_is_counted(head: Head, counted: tuple[int, int], late: int) -> None:
    peer = Peer("b", HostCounters(), _no_incoming())
    assert is_next(peer, head, 5)
    assert not is_next(peer, head, late)
    assert (peer.counters.duplicates, peer.counters.stale) == counted
    assert is_next(peer, head, 9)
    assert peer.serial == 9


def _no_incoming() -> Incoming:
    """Return what these tests never use."""
    return Incoming.__new__(Incoming)
