"""One connection of the model, and for how long it may wait for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sbusd.dataplane.contract import MAX_LISTED_RECIPIENTS, End, Sight
from sbusd.dataplane.counters import ConnectionCounters
from tests.oracle.entries import Entry, Packet
from tests.oracle.fairness import SECOND
from tests.oracle.link import Link, Received
from tests.oracle.pools import Payer
from tests.oracle.queues import ClientQueue
from tests.oracle.turns import Clock

READ_PACKETS = 64
SLOT = SECOND // 16
"""Waits are counted for whole slots: each for one second, or up to a slot more."""


@dataclass(slots=True)
class Hold:
    """How long recipients of one other user have blocked a paced publisher."""

    clock: Clock
    limit: int
    """Nanoseconds of each second; a second is no limit."""
    count: int = 0
    """Recipients that it waits for now."""
    since: int = 0
    until: int | None = None
    """When it is read again, whatever the recipients take."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """The slot in which each wait of the last second ended, and its length."""

    def has_time(self) -> bool:
        """Return whether the publisher may wait for those recipients now."""
        return self.limit >= SECOND or self._spent() < self.limit

    def begin(self) -> None:
        """Count one more recipient."""
        if not self.count:
            self.until = None if self.limit >= SECOND else self.clock.now + self.limit - self._spent()
            self.since = self.clock.now
        self.count += 1

    def end(self) -> None:
        """Count one less."""
        self.count -= 1
        if not self.count:
            self.waits.append((self.clock.now // SLOT, self.clock.now - self.since))

    def is_over(self) -> bool:
        """Return whether the publisher has waited for as long as it may."""
        return self.until is not None and self.until <= self.clock.now

    def _spent(self) -> int:
        """Return for how long the publisher has waited in the last second."""
        self.waits = [(slot, length) for slot, length in self.waits if slot >= self.clock.now // SLOT - SECOND // SLOT]
        return sum(length for _, length in self.waits) + (self.clock.now - self.since if self.count else 0)


@dataclass(slots=True, eq=False)
class Connection:
    """One client: its settings, what it has sent, and what blocks it."""

    number: int
    link: Link
    out: ClientQueue
    patterns: Counter[bytes] = field(default_factory=Counter)
    echo: bool = True
    receipt: tuple[bytes, bool, bool] | None = None
    """The token of the receipt for its next message, whether it is always sent, and whether it lists the recipients."""
    cred: bytes = b""
    wants_senders: bool = False
    tap: bytes | None = None
    blocks_others: bool = False
    rules: int = 0
    sight: Sight = Sight.OWN
    may_vouch: bool = False
    may_deliver: bool = False
    is_paced: bool = False
    """Its messages wait for slow recipients."""

    share: list[tuple[Packet, bytes]] = field(default_factory=list)
    """Packets of the batch at hand that are for it, each with the name of the group of which it gets it as a member."""
    measured: int | None = None
    """What it had not read when it was measured, and what it got since then as a member of groups."""
    tapped: list[Packet] = field(default_factory=list)
    """Packets of the batch at hand that its tap matches."""

    unread: list[Received] = field(default_factory=list)
    """What was read and not handled yet."""
    unread_bytes: int = 0
    reads: int = READ_PACKETS
    """Packets that are read from it at once."""
    is_reading: bool = True
    """Its sending side is open."""
    is_at_end: bool = False
    is_served: bool = False
    """A batch of its packets is being handled."""
    end: End | None = None

    blockers: int = 0
    """Reasons not to read it."""
    is_held_up: bool = False
    """One of them: its user's connections have too much unread."""
    is_watched: bool = True
    """Whether a hang-up is reported."""
    holds: dict[int, Hold] = field(default_factory=dict)
    blocked: dict[int, bool] = field(default_factory=dict)
    """Publishers that wait for it, the first one first; each with whether it asked for that by pacing."""
    blocking_since: int | None = None
    progress_at: int = 0
    progress_mark: int = 0
    """Packets that it had taken at ``progress_at``."""
    has_fallen_back: bool = False
    """It has blocked publishers for too long. It blocks none until its queue has drained."""

    received_packets: int = 0
    received_bytes: int = 0
    refused_packets: int = 0

    @property
    def uid(self) -> int | None:
        """The user, None before the connection has one."""
        return self.out.uid

    @property
    def payer(self) -> Payer:
        """The user that is charged."""
        return self.out.owner

    @property
    def is_ending(self) -> bool:
        """Whether it is closed at the end of this turn."""
        return self.end is not None

    def update_watch(self) -> None:
        """Report what the connection waits for to the client's end."""
        reads = self.is_reading and not self.blockers
        self.link.watch(reads=reads, writes=bool(self.out.room.packets), hang_up=self.is_watched)

    def load(self) -> int:
        """Return how many bytes it has not read: measured once for each delivery."""
        if self.measured is None:
            self.measured = self.out.room.bytes + self.link.unread()
        return self.measured

    def take_share(self, prefix_of: Callable[[Packet], Packet], sender: Connection) -> list[tuple[bytes, list[Entry]]]:
        """Return the packets of the batch at hand, as they are offered to it: in runs, each with its group."""
        share, self.share = self.share, []
        runs: list[tuple[bytes, list[Entry]]] = []
        heads: dict[Packet | None, Packet] = {}
        for packet, group in share:
            prefix = prefix_of(packet) if self.wants_senders and not packet.is_note else None
            if not runs or runs[-1][0] != group:
                runs.append((group, []))
                heads = {}
            if group:
                # Packets that are offered at once share a head if they share the one that names the sender.
                prefix = heads.setdefault(prefix, Packet(b"CMSG !/group/%b\0%b" % (group, prefix.data if prefix else b"")))
            runs[-1][1].append(Entry(packet, prefix, sender.payer, sender.uid))
        return runs

    def counters(self) -> ConnectionCounters:
        """Return the counters of the contract."""
        out = self.out
        delivered = (out.delivered_packets, out.delivered_bytes, out.room.packets, out.room.bytes, out.lost_packets)
        return ConnectionCounters(self.received_packets, self.received_bytes, *delivered, self.refused_packets, out.replaced_packets)


def receipt_packet(token: bytes, recipients: int | None, listed: list[int]) -> bytes:
    """Return a receipt with the number of recipients, None if that is withheld, and the *listed* ones."""
    packet = b"CMSG !/bus/receipt\0%b\0%b" % (token, b"-" if recipients is None else b"%d" % recipients)
    if recipients is None or not 0 < len(listed) <= MAX_LISTED_RECIPIENTS:
        return packet
    return packet + b"\0" + b",".join(b"%d" % number for number in listed)
