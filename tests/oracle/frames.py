"""The packets of a client whose socket is a stream: frames, which the socket may take in part. Rule 14 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbus.protocol.packets import LENGTH_BYTES
from tests.oracle.entries import Entry
from tests.oracle.link import Outcome
from tests.oracle.pools import Payer
from tests.oracle.queues import ClientQueue

SHORT_BYTES = 4096
"""A frame up to this length is begun whether or not its rest has room."""


@dataclass(slots=True, eq=False)
class FrameQueue(ClientQueue):
    """Everything on its way to one stream."""

    rest: Entry | None = None
    """The entry whose frame the socket has taken in part."""
    left: int = 0
    """The last bytes of that frame, which the socket has not taken."""

    def offer(self, entries: list[Entry], *, may_block: bool, is_paced: bool = False) -> None:
        """Deliver messages. One whose frame is sent in part counts as queued."""
        is_empty = not self.room.packets
        first = entries.copy()
        super(FrameQueue, self).offer(entries, may_block=may_block, is_paced=is_paced)
        if is_empty and self.rest is not None and any(self.rest is each for each in first) and self.rest not in self.waiting:
            self.rest.packet.handed -= 1
            self.rest.packet.queued += 1

    def abandon(self) -> None:
        """Discard the queue, with the packet that was sent in part."""
        if self.rest is not None:
            self.waiting.insert(0, self.rest)
            self.fixed += 1
            self.rest = None
        super(FrameQueue, self).abandon()

    def end_with(self, words: bytes) -> None:
        """Offer *words* as the last packet, unless a frame is not complete."""
        self.is_broken |= self._send_rest() is not Outcome.TAKEN
        super(FrameQueue, self).end_with(words)

    def _send_rest(self) -> Outcome:
        """Send the rest of a frame, if there is one."""
        if self.rest is None:
            return Outcome.TAKEN
        taken = self.link.offer_bytes(frame_of(self.rest)[-self.left :])
        if taken is None:
            self.is_broken = True
            return Outcome.GONE
        self.left -= taken
        if self.left:
            return Outcome.FULL
        self._count_delivered([self.rest])
        self._release(self.rest)
        self.rest = None
        return Outcome.TAKEN

    def _transmit(self, entries: Sequence[Entry]) -> tuple[int, Outcome]:
        """Send entries with one call; return how many were begun, and why not more."""
        sent = entries if self.room.packets else entries[: self._begun_at_most(entries)]
        taken = self.link.offer_bytes(b"".join(map(frame_of, sent))) if sent else 0
        if taken is None:
            self.is_broken = True
            return 0, Outcome.GONE
        done = 0
        while done < len(sent) and taken >= len(frame_of(sent[done])):
            taken -= len(frame_of(sent[done]))
            done += 1
        self._count_delivered(sent[:done])
        if taken:
            self.rest, self.left = sent[done], len(frame_of(sent[done])) - taken
            self._charge_for(self.rest)
            return done + 1, Outcome.FULL
        return done, Outcome.TAKEN if done == len(entries) else Outcome.FULL

    def _begun_at_most(self, entries: Sequence[Entry]) -> int:
        """Return how many entries precede the first long one that the queue would not accept."""
        for place, entry in enumerate(entries):
            if len(entry.wire) > SHORT_BYTES and not self._has_room(entry.payer, entry.cost):
                return place
        return len(entries)

    def _has_room(self, payer: Payer, cost: int) -> bool:
        """Return whether the queue, the user and the bus have room for one more packet."""
        payer = self.owner if payer is None else payer
        return self.room.has_space(cost) and self.room.may_share(self.owner, payer, cost) and self._is_allowed(payer, cost)

    def _count_delivered(self, entries: Sequence[Entry]) -> None:
        """Count packets that the client has got completely."""
        length = sum(len(entry.wire) for entry in entries)
        self.delivered_packets += len(entries)
        self.delivered_bytes += length
        self.count.update(delivered_packets=len(entries), delivered_bytes=length)


def frame_of(entry: Entry) -> bytes:
    """Return an entry as it is sent."""
    return len(entry.wire).to_bytes(LENGTH_BYTES, "little") + entry.wire
