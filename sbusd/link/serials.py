"""Late frames: a server that had stopped can send frames of an earlier connection of a host after those of a later connection.

The numbers of a flow do not show that, because a key can change its flow. So each link counts the frames that it sends, and ignores those
of others that come after later ones.
"""

from __future__ import annotations

from sbusd.link.frames import Data, Head, Heartbeat, add_serial, parse_messages
from sbusd.link.outgoing import is_secret
from sbusd.link.peers import MIN_INTERVAL, MISSED, Peer
from sbusd.link.ports import LINK, Network
from sbusd.link.subjects import Arrival


class NumberedNetwork:
    """The network for all parts of one link: adds the serial to the head of each frame."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._last = 0
        self.subscribe = network.subscribe
        self.unsubscribe = network.unsubscribe
        self.barrier = network.barrier

    @property
    def address(self) -> str:
        """The address of this host."""
        return self._network.address

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        """Send *body* of *owner* with *head*, which has no serial yet, to every subscriber of *subject*."""
        self._last += 1
        self._network.publish(subject, add_serial(head, self._last), body, owner)


def is_next(peer: Peer, serial: int) -> bool:
    """Return whether the frame *serial* of *peer* comes after all others so far. If so, its serial is noted."""
    if serial <= peer.serial:
        return False
    peer.serial = serial
    return True


def is_private(arrival: Arrival, head: Head, body: bytes) -> bool:
    """Return whether a frame has private messages. They have one flow, whose numbers keep their order, so late ones need not be ignored.

    Raises FrameError.
    """
    return arrival.kind == "x" and isinstance(head, Data) and bool(head.messages) and is_secret(parse_messages(body, head)[0].key)


def count_late(peer: Peer, head: Head) -> None:
    """Count a frame that is ignored because it came after later ones."""
    if isinstance(head, Data):
        peer.counters.duplicates += head.messages
    else:
        peer.counters.stale += 1


def is_earlier_run_present(peer: Peer, head: Head, clock: float) -> bool:
    """Return whether a frame with a smaller epoch than that of *peer* is of its present run, because its clock was set back.

    Late frames of an earlier run come all at once, when a server resumes. The present run sends heartbeats: while the other run is silent,
    one has to come as long after the first as a host may be silent. *clock* is that of `Peers`.
    """
    if peer.is_alive or not isinstance(head, Heartbeat):
        return False
    if head.epoch != peer.earlier_epoch:
        peer.earlier_epoch, peer.earlier_since = head.epoch, clock
    return clock - peer.earlier_since >= MISSED * MIN_INTERVAL
