"""The interfaces between the link protocol, the network and the local bus.

The adapters implement `Network` and `LocalBus`. The session implements `NetworkEvents` and `LocalBusEvents`. Every method returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sbus_services.link.message_runs import MessageRun

NoteLoss = Callable[[str, Sequence[bytes], int], None]
"""Gets a host, the patterns of clients that miss messages of it, and how many; 0 is an unknown number."""


LINK = -1
"""The owner of frames of the link itself, such as heartbeats. Users are numbers from 0 on."""

BLOBS = -2
"""The owner of frames with questions and answers about blobs."""


def ignore_loss(_origin: str, _patterns: Sequence[bytes], _count: int) -> None:
    """Do not note a loss."""


class Network(Protocol):
    """Carries bodies to subjects. Only called between `NetworkEvents.connected` and `NetworkEvents.disconnected`."""

    @property
    def address(self) -> str:
        """The address of this host in the network, empty if it is unknown."""

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        """Send *body* with the one-line *head* to every subscriber of *subject*. If it does not fit, the owner with the most loses one."""

    def subscribe(self, subject: str) -> None:
        """Receive what others publish to *subject*, which may have wildcards ("*", and ">" at the end)."""

    def unsubscribe(self, subject: str) -> None:
        """End one subscription."""

    def barrier(self, number: int) -> None:
        """Ask for `NetworkEvents.barrier_passed` once the network has processed everything sent before."""


class NetworkEvents(Protocol):
    """What happens on the network, in order."""

    def connected(self) -> None:
        """The network is usable; no subscription exists yet."""

    def disconnected(self, reason: str) -> None:
        """The network is not usable, and its subscriptions are gone."""

    def received(self, subject: str, head: bytes, body: bytes) -> None:
        """A message came for one of the subscriptions. Overlapping subscriptions may repeat it."""

    def barrier_passed(self, number: int) -> None:
        """Everything sent before the barrier is processed."""

    def rejected(self, reason: str) -> None:
        """The network rejected something that was sent, for example because a permission is missing."""


class QuestionEvents(Protocol):
    """What other hosts ask and answer."""

    def asked(self, host: str, epoch: int, number: int, body: bytes) -> None:
        """A question of *host*, in its run *epoch*."""

    def answered(self, host: str, number: int, body: bytes) -> None:
        """An answer of *host* to the question *number* of this run."""


class LocalBus(Protocol):
    """The bus of this machine."""

    def subscribe(self, pattern: bytes) -> None:
        """Store one instance of a pattern."""

    def unsubscribe(self, pattern: bytes) -> None:
        """Remove one instance of a pattern."""

    def acknowledge(self, number: int) -> None:
        """Ask for `LocalBusEvents.acknowledged` once the bus has processed everything sent before."""

    def publish(self, body: bytes, count: int) -> None:
        """Send *count* packets, each after its length, as one batch: control packets that vouch for a MSG packet."""

    def report_lost(self, patterns: Sequence[bytes], count: int) -> None:
        """Report *count* lost messages to each client that stores exactly one of these patterns; 0: an unknown number."""


class LocalBusEvents(Protocol):
    """What happens on the bus of this machine, in order."""

    def messages(self, run: MessageRun) -> None:
        """Messages came that one of the stored patterns matches. Their sender is ``<cred>`` of the publisher, or ``<cred>/<origin>``."""

    def subscribed(self, client_id: int, uid: int, pattern: bytes) -> None:
        """Another client, of the user *uid*, has stored a pattern that it did not have; further instances are not reported."""

    def unsubscribed(self, client_id: int, pattern: bytes) -> None:
        """Another client has removed its last instance of a pattern."""

    def client_gone(self, client_id: int) -> None:
        """A client has disconnected, and its patterns are gone."""

    def lost(self, count: int) -> None:
        """The bus discarded messages for this link; 0: an unknown number."""

    def restarted(self) -> None:
        """The connection is new: no pattern is stored, and messages may be missing."""

    def acknowledged(self, number: int) -> None:
        """The bus has processed everything sent before `LocalBus.acknowledge`."""
