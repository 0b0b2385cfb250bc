"""Serials: each link counts the frames that it sends, and ignores frames of others that come after later ones.

A flow has numbers of its own, but a key can change its flow. A server that had stopped can send what it got over an earlier connection of
a host, after the messages that the host has sent over a later one; without serials, they would come out of order.
"""

from __future__ import annotations

from sbusd.link.frames import Data, Head, add_serial
from sbusd.link.peers import Peer
from sbusd.link.ports import Network


class NumberedNetwork:
    """The network for all parts of one link: adds the serial to the head of each frame."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._last = 0
        self.subscribe = network.subscribe
        self.unsubscribe = network.unsubscribe
        self.barrier = network.barrier

    def publish(self, subject: str, head: bytes, body: bytes) -> None:
        """Send *body* with *head*, which has no serial yet, to every subscriber of *subject*."""
        self._last += 1
        self._network.publish(subject, add_serial(head, self._last), body)


def is_next(peer: Peer, head: Head, serial: int) -> bool:
    """Return whether the frame *serial* of *peer* comes after all others so far. Note it if it does, and count it otherwise."""
    if serial > peer.serial:
        peer.serial = serial
        return True
    if isinstance(head, Data):
        peer.counters.duplicates += head.messages
    else:
        peer.counters.stale += 1
    return False
