"""What waits for one client, in the words of Python: the plain twin of the compiled ``outbox``, with the same rules.

It is a part of the reference switch, and like that one it copies every packet and makes one system call for each.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sbusd.dataplane.connection_state import Queue
from sbusd.dataplane.contract import (
    ENTRY_BYTES,
    KNOWN_KEY_BYTES,
    RANDOM_PACKETS,
    HardMode,
    Order,
    SoftMode,
    packet_bytes,
    waiting_bytes,
)
from sbusd.protocol.batches import BATCH_HEAD, LENGTH_BYTES, join_batch
from tests.oracle.rooms import Account, Payer, Pool

FLUSH_ROUNDS = 4
BATCH_PACKETS = 64
NOTICE_BYTES = 48
_WAIT = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
Entry = tuple["Packet", "Packet | None", Payer]
"""What waits: a packet, what goes in front of it, and who published it."""

_Line = tuple["Packet", "Packet | None"]
"""What is to be sent: a packet, and what goes in front of it."""


@dataclass(slots=True, eq=False)
class Packet:
    """One packet, shared by all queues that hold it. ``is_note``: the bus's own, which keeps its order whatever that of messages.

    It was ``handed`` to so many sockets, ``queued`` for so many clients when it came, and ``discarded`` for so many; ``missed`` are the
    connections that it matched and did not reach. It came at ``time``, nanoseconds since 1970.
    """

    data: bytes
    is_note: bool = False
    holders: int = 0
    handed: int = 0
    queued: int = 0
    discarded: int = 0
    foreign_losses: int = 0
    """Of the discarded: for connections of other users than its publisher."""
    missed: list[int] = field(default_factory=list)
    time: int = 0


@dataclass(slots=True, eq=False)
class Outbox:
    """What waits for one client. ``count`` are the switch's counters; ``held`` among them is the memory of all that waits."""

    connection: int
    socket: socket.socket
    count: Counter[str]
    room: Pool
    held_limit: int
    account: Account | None = None
    soft: SoftMode = SoftMode.QUEUE
    hard: HardMode = HardMode.DISCARD
    order: Order = Order.QUEUE
    waiting: list[Entry] = field(default_factory=list)
    notes: list[Entry] = field(default_factory=list)
    fixed: int = 0
    """So many of the first that wait are not replaced, whatever comes. With the order ``latest`` each message behind them has a key of its
    own."""
    replaced_packets: int = 0
    untold_replaced: int = 0
    batch_bytes: int = 0
    """The longest batch that it is sent; 0: it is sent none."""
    is_broken: bool = False
    is_failed: bool = False
    has_blocked: bool = False
    has_paced: bool = False
    """The publisher that it needs to wait has asked for that itself."""
    untold: int = 0
    told: int = 0
    left_packets: int = 0
    """What waited and was given up."""
    left_bytes: int = 0
    is_parted: bool = False
    """Whether its last words were offered: what waits now is those."""
    delivered_packets: int = 0
    delivered_bytes: int = 0
    lost_packets: int = 0

    @property
    def owner(self) -> Payer:
        """The uid that it belongs to, None while it is nobody's."""
        return None if self.account is None else self.account.uid

    def is_below(self, percent: int) -> bool:
        """Return whether no more waits than that part of the queue's bounds."""
        room = self.room
        return room.packets * 100 <= room.packets_limit * percent and room.bytes * 100 <= room.bytes_limit * percent

    def may_go_on(self, payer: Payer, low_water: int, *, is_paced: bool) -> bool:
        """Return whether enough has drained for a publisher that waits."""
        if not self.room.packets:
            return True
        if self.soft is SoftMode.BLOCK:
            return False
        return not any(room.is_pressed(self.owner, payer) for room in self._rooms()) if is_paced else self.is_below(low_water)

    def offer(
        self,
        packets: list[Packet],
        payer: Payer,
        *,
        may_block: bool,
        is_paced: bool = False,
        heads: Sequence[Packet | None] | None = None,
    ) -> None:
        """Hand over packets: to the socket while nothing waits, then to the queue; what that does not take is for the modes.

        *heads*, one for each packet, are what goes in front of them.
        """
        self.count["deliveries"] += len(packets)
        left, outcome = list(zip(packets, heads or [None] * len(packets), strict=True)), errno.EAGAIN
        if not self.is_broken and not self.room.packets and not self.untold:
            taken, outcome = self._transmit(left)
            for packet, _ in left[:taken]:
                packet.handed += 1
            left = left[taken:]
        if self.is_broken:
            self.count["abandoned_packets"] += len(left)
            for packet, _ in left:
                packet.missed.append(self.connection)
            return
        if outcome == errno.EMSGSIZE:
            self._discard(left.pop(0)[0], payer)
            self._tell_loss()
        for packet, head in left:
            self._hold((packet, head, payer), may_block=may_block, is_paced=is_paced)
        if outcome == errno.EMSGSIZE or (self.untold and not self.room.packets):
            self.flush()

    def post(self, data: bytes, payer: Payer = None) -> None:
        """Hand over one packet of the bus itself, behind those that wait already; no mode applies to it, every bound does.

        *payer* is the uid of who caused it; None: the client itself.
        """
        if payer is None:
            payer = self.owner
        self.count["deliveries"] += 1
        packet, outcome = Packet(data, is_note=True), errno.EAGAIN
        if not self.is_broken and not self.room.packets and not self.untold:
            _, outcome = self._transmit([(packet, None)])
        if self.is_broken:
            self.count["abandoned_packets"] += 1
        elif outcome == errno.EMSGSIZE:
            self._lose()
            self.flush()
        elif outcome:
            cost = waiting_bytes(len(data))
            fits = self.room.has_space(cost) and self.room.may_share(self.owner, payer, cost)
            if fits and self._has_room(payer, cost) and self._tell_loss():
                self._keep((packet, None, payer))
            else:
                self._lose()

    def set_order(self, order: Order) -> None:
        """Set the order of messages that wait. Those that wait now are not replaced, and replace nothing."""
        if order is not self.order:
            for _, _, payer in self._known():
                self._know(payer, -1)
            self.order, self.fixed = order, len(self.waiting)

    @property
    def replaceable_from(self) -> int:
        """How many of the first that wait are not replaced, as the next switch is told."""
        return self.fixed if self.order is Order.LATEST else 0

    def _hold(self, entry: Entry, *, may_block: bool, is_paced: bool) -> None:
        """Let a packet wait, or lose it. With the order ``latest`` it takes the place of an older one of its key."""
        packet, head, payer = entry
        has_key = self.order is Order.LATEST and not packet.is_note
        place = self._place_of(packet.data) if has_key else None
        cost = _cost(packet, head) + KNOWN_KEY_BYTES * has_key
        if place is None:
            # A notice goes in front of a packet that is kept.
            may = self._may_wait(payer, cost, may_block=may_block, is_paced=is_paced) and self._tell_loss()
        else:
            older = self.waiting[place]
            self._know(older[2], -1)
            self._charge(older, -1)
            may = self._may_wait(payer, cost, may_block=may_block, is_paced=is_paced)
            self._charge(older)
            self._know(older[2])
        if not may:
            self._discard(packet, payer)
            return
        packet.queued += 1
        self._keep(entry)
        if has_key:
            self._know(payer)
        if place is not None:
            self._replace(place)

    def _replace(self, place: int) -> None:
        """Put the packet that came last in the *place* of the older one of its key."""
        older = self.waiting[place]
        self._know(older[2], -1)
        self._let_go(older)
        self.waiting[place] = self.waiting.pop()
        self.replaced_packets += 1
        self.untold_replaced += 1
        self.count["replaced_packets"] += 1

    def _known(self) -> list[Entry]:
        """Return the messages that newer ones replace."""
        return self.waiting[self.fixed :] if self.order is Order.LATEST else []

    def _place_of(self, message: bytes) -> int | None:
        """Return where an older message waits that *message* replaces."""
        head = message[: message.index(0) + 1]
        return next((self.fixed + place for place, entry in enumerate(self._known()) if entry[0].data.startswith(head)), None)

    def _know(self, payer: Payer, sign: int = 1) -> None:
        """Account for one key more that is known of a payer's messages, or with *sign* -1 for one less."""
        self.count["held"] += sign * KNOWN_KEY_BYTES
        for room in self._rooms():
            room.charge(self.owner, payer, KNOWN_KEY_BYTES, sign, packets=0)

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it and the turn's share goes."""
        for _ in range(FLUSH_ROUNDS):
            self._tell_loss()
            if not self.room.packets:
                break
            outcome = self._send_notes() or self._tell_replaced() or self._send_messages()
            if self.is_broken:
                self.abandon()
            if outcome in {errno.EAGAIN, errno.EPIPE}:
                break
        if not self.is_broken:
            self._tell_loss()

    def requeue(self, packets: list[Packet], queue: Queue) -> None:
        """Let wait again what waited in another process; *packets* are what *queue* names by their places."""
        for entries, as_note in ((queue.waiting, False), (queue.notes, True)):
            for place, head, payer in entries:
                self._keep((packets[place], None if head is None else packets[head], payer), as_note=as_note)
        self.fixed = queue.fixed
        for _, _, payer in self._known():
            self._know(payer)

    def abandon(self) -> None:
        """Give up what waits."""
        self.count["abandoned_packets"] += self.room.packets
        if not self.is_parted:
            self.left_packets += self.room.packets
            self.left_bytes += self.room.bytes
        for _, _, payer in self._known():
            self._know(payer, -1)
        for entry in (*self.notes, *self.waiting):
            self._let_go(entry)
        self.notes.clear()
        self.waiting.clear()
        self.fixed = 0

    def part(self, words: bytes) -> None:
        """Offer *words* as the last that the client is told; what waits is given up, and what it was not told of with it."""
        self.abandon()
        self.told += self.untold
        self.untold = self.untold_replaced = 0
        self.is_parted = True
        self.post(words)

    def _transmit(self, packets: Sequence[_Line]) -> tuple[int, int]:
        """Send *packets*, each with what goes in front of it, in batches where the client wants them.

        Return how many the socket took and why not more: 0, EAGAIN if the next has to wait, EMSGSIZE if it never fits, EPIPE if the peer
        is gone.
        """
        done = 0
        while done < len(packets):
            count = self._fitting(packets[done:])
            group = packets[done : done + count]
            wire = [(head.data if head else b"") + packet.data for packet, head in group]
            outcome = self._push(join_batch(wire) if count > 1 else wire[0])
            if outcome == errno.EMSGSIZE and count > 1:
                # The socket's buffer is smaller than a batch: smaller batches from now on, down to packets that go alone.
                self.batch_bytes //= 2
                continue
            if outcome:
                return done, outcome
            length = sum(map(len, wire))
            self.delivered_packets += count
            self.delivered_bytes += length
            self.count.update(delivered_packets=count, delivered_bytes=length)
            if count > 1:
                self.count.update(delivered_batches=1, batched_packets=count)
            done += count
        return done, 0

    def _fitting(self, packets: Sequence[_Line]) -> int:
        """Return how many of *packets* go out in one."""
        size = len(BATCH_HEAD)
        for count, (packet, head) in enumerate(packets):
            size += LENGTH_BYTES + _length(packet, head)
            if size > self.batch_bytes:
                return max(count, 1)
        return len(packets)

    def _push(self, data: bytes) -> int:
        """Send one packet; return 0, EAGAIN, EMSGSIZE or EPIPE."""
        try:
            self.socket.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno in _WAIT:
                return errno.EAGAIN
            if error.errno == errno.EMSGSIZE:
                return errno.EMSGSIZE
            if error.errno not in {errno.EPIPE, errno.ECONNRESET}:
                # The peer may well live, and would wait for ever for what it is not sent: so it sees the end at once.
                with contextlib.suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)
            self.is_broken = True
            return errno.EPIPE
        return 0

    def _has_room(self, payer: Payer, cost: int) -> bool:
        """Return whether the user and the bus have room for one more packet, whatever the queue itself has."""
        if self.account is None:
            return True
        room = self.account.room
        if not room.has_space(cost) or not room.may_share(self.owner, payer, cost):
            return False
        return self.count["held"] + room.bytes + cost <= self.held_limit

    def _may_wait(self, payer: Payer, cost: int, *, may_block: bool, is_paced: bool) -> bool:
        """Decide by the modes whether a packet that the socket did not take may wait."""
        if self.soft in {SoftMode.DISCARD, SoftMode.ERROR}:
            self.is_failed |= self.soft is SoftMode.ERROR
            return False
        if not self._has_room(payer, cost):
            return False
        fits = self.room.has_space(cost)
        has_share = self.room.may_share(self.owner, payer, cost)
        if self.soft is SoftMode.BLOCK or not fits or not has_share:
            if may_block and (self.soft is SoftMode.BLOCK or self.hard is HardMode.BLOCK):
                self.has_blocked, self.has_paced = True, False
            elif is_paced and has_share and (fits or payer == self.owner):
                self.has_blocked = self.has_paced = True
            else:
                self.is_failed |= self.soft is not SoftMode.BLOCK and self.hard is HardMode.ERROR and not fits
                return False
        elif is_paced and any(room.is_pressed(self.owner, payer, 1, cost) for room in self._rooms()):
            self.has_blocked = self.has_paced = True
        return True

    def _keep(self, entry: Entry, *, as_note: bool | None = None) -> None:
        """Let a packet wait; *as_note* says whether among the notes, where it is not for the packet and the order to say."""
        packet, head, _ = entry
        for part in (packet, head) if head else (packet,):
            if not part.holders:
                self.count["held"] += packet_bytes(len(part.data))
            part.holders += 1
        self.count["held"] += ENTRY_BYTES
        self._charge(entry)
        if as_note is None:
            as_note = packet.is_note and self.order is not Order.QUEUE
        (self.notes if as_note else self.waiting).append(entry)

    def _let_go(self, entry: Entry) -> None:
        """Account for a packet that waits no more."""
        packet, head, _ = entry
        for part in (packet, head) if head else (packet,):
            part.holders -= 1
            if not part.holders:
                self.count["held"] -= packet_bytes(len(part.data))
        self.count["held"] -= ENTRY_BYTES
        self._charge(entry, -1)

    def _charge(self, entry: Entry, sign: int = 1) -> None:
        """Account for a packet that begins to wait, or with *sign* -1 for one that waits no more."""
        packet, head, payer = entry
        for room in self._rooms():
            room.charge(self.owner, payer, _cost(packet, head), sign)

    def _rooms(self) -> tuple[Pool, ...]:
        """Return the pools that a packet here is charged to."""
        return (self.room,) if self.account is None else (self.room, self.account.room)

    def _discard(self, packet: Packet, payer: Payer) -> None:
        """Lose a packet that *payer* has published and that was routed here."""
        self._lose()
        packet.discarded += 1
        packet.foreign_losses += payer != self.owner
        packet.missed.append(self.connection)

    def _lose(self) -> None:
        """Count a packet that is discarded."""
        self.lost_packets += 1
        self.untold += 1
        self.count["lost_packets"] += 1
        if self.account is not None:
            self.account.lost_packets += 1

    def _notice(self, count: int) -> Packet:
        """Return the packet that tells the peer of *count* of the packets that it lost."""
        notice = Packet(b"CMSG !/bus/lost\0%d" % count, is_note=True)
        self.told += count
        self.untold -= count
        self.count["deliveries"] += 1
        return notice

    def _tell_loss(self) -> bool:
        """Queue the notice of a loss; return whether there is none left to tell."""
        cost = waiting_bytes(NOTICE_BYTES)
        if self.untold and self.room.has_space(cost) and self._has_room(self.owner, cost):
            self._keep((self._notice(self.untold), None, self.owner))
        return not self.untold

    def _tell_replaced(self) -> int:
        """Tell the peer how many messages were replaced since it was last told; return why the socket takes no more, or 0."""
        if not self.untold_replaced:
            return 0
        taken, outcome = self._transmit([(Packet(b"CMSG !/bus/replaced\0%d" % self.untold_replaced, is_note=True), None)])
        if taken:
            self.untold_replaced = 0
            self.count["deliveries"] += 1
        return 0 if outcome == errno.EMSGSIZE else outcome

    def _send_notes(self) -> int:
        """Send the bus's own packets that do not wait among messages."""
        while self.notes:
            chosen = self.notes[:BATCH_PACKETS]
            taken, outcome = self._transmit([entry[:2] for entry in chosen])
            never_fits = outcome == errno.EMSGSIZE
            for entry in chosen[: taken + never_fits]:
                self._let_go(entry)
                self.notes.remove(entry)
            if never_fits:
                self._lose()
            elif outcome:
                return outcome
        return 0

    def _send_messages(self) -> int:
        """Send one batch of the messages that wait, by the client's order."""
        chosen = self._chosen()
        taken, outcome = self._transmit([entry[:2] for entry in chosen])
        never_fits = outcome == errno.EMSGSIZE
        for entry in chosen[: taken + never_fits]:
            if self.fixed:
                self.fixed -= 1
            elif self.order is Order.LATEST:
                self._know(entry[2], -1)
            self._let_go(entry)
            self.waiting.remove(entry)
        if never_fits:
            self._lose()
            if self.order is Order.QUEUE:
                # Of this one alone: others that the peer is not told of yet were lost behind what waits.
                self._keep((self._notice(1), None, self.owner))
                self.waiting.insert(0, self.waiting.pop())
        return outcome

    def _chosen(self) -> list[Entry]:
        """Return the messages that go next."""
        if self.order is Order.STACK:
            return self.waiting[: -BATCH_PACKETS - 1 : -1]
        if self.order is Order.RANDOM:
            # sorted() keeps the older one in front among equals.
            oldest = self.waiting[:RANDOM_PACKETS]
            return sorted(oldest, key=lambda entry: -len(entry[0].data) if entry[0].holders == 1 else 0)[:BATCH_PACKETS]
        return self.waiting[:BATCH_PACKETS]


def _length(packet: Packet, head: Packet | None) -> int:
    """Return how long a packet is, with what goes in front of it."""
    return len(packet.data) + (len(head.data) if head else 0)


def _cost(packet: Packet, head: Packet | None) -> int:
    """Return what a packet is charged with, with what goes in front of it."""
    return waiting_bytes(len(packet.data), len(head.data) if head else 0)
