"""Ports of a link that only record what it does, and frames of other hosts for it, for tests of one session or one part."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from sbus.protocol.packets import parse_batch
from sbus_services.link.frames import Head, add_serial, encode_head
from sbus_services.link.ports import LINK
from sbus_services.link.session import LinkSession

_SERIALS = itertools.count(1)


def receive(session: LinkSession, subject: str, head: Head | bytes, body: bytes = b"") -> None:
    """Give *session* a frame of another host; one with a valid head comes after all others so far. Bytes are a head as they are."""
    session.received(subject, head if isinstance(head, bytes) else add_serial(encode_head(head), next(_SERIALS)), body)


class RecordedNetwork:
    """`Network`: keeps frames, whose heads have no serial any more, and subscriptions."""

    address = "192.0.2.1"

    def __init__(self) -> None:
        self.frames: list[tuple[str, bytes, bytes]] = []
        self.owners: list[int] = []
        """Of all frames ever."""
        self.serial = 0
        self.subjects: Counter[str] = Counter()
        self.barriers: list[int] = []

    def publish(self, subject: str, head: bytes, body: bytes, owner: int = LINK) -> None:
        self.owners.append(owner)
        unnumbered, _, serial = head.removeprefix(b"2/").rpartition(b"/")
        assert int(serial) > self.serial
        self.serial = int(serial)
        self.frames.append((subject, unnumbered, body))

    def subscribe(self, subject: str) -> None:
        self.subjects[subject] += 1

    def unsubscribe(self, subject: str) -> None:
        self.subjects[subject] -= 1

    def barrier(self, number: int) -> None:
        self.barriers.append(number)

    def taken(self, kind: str) -> list[tuple[str, bytes, bytes]]:
        """Return and forget the frames whose heads begin with *kind*; the others are forgotten too."""
        frames, self.frames = self.frames, []
        return [frame for frame in frames if frame[1].startswith(kind.encode())]


class RecordedBus:
    """`LocalBus`: keeps packets, patterns and losses, all in order in *events*."""

    def __init__(self) -> None:
        self.patterns: Counter[bytes] = Counter()
        self.packets: list[bytes] = []
        self.losses: list[tuple[tuple[bytes, ...], int]] = []
        self.events: list[str] = []
        self.acknowledgements: list[int] = []

    def subscribe(self, pattern: bytes) -> None:
        self.patterns[pattern] += 1

    def unsubscribe(self, pattern: bytes) -> None:
        self.patterns[pattern] -= 1
        self.patterns += Counter()

    def acknowledge(self, number: int) -> None:
        self.acknowledgements.append(number)

    def publish(self, body: bytes, count: int) -> None:
        packets = list(parse_batch(body, 0))
        assert len(packets) == count
        self.packets += packets
        self.events += ["packet"] * count

    def report_lost(self, patterns: Sequence[bytes], count: int) -> None:
        self.losses.append((tuple(patterns), count))
        self.events.append(f"lost {count}")
