"""The packets of one client that wait for room: modes, orders, losses and batches. Rules 3, 6, 7 and 9 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, join_batch
from sbusd.dataplane.contract import ENTRY_BYTES, KNOWN_KEY_BYTES, RANDOM_PACKETS, HardMode, Order, SoftMode, packet_bytes, waiting_bytes
from tests.oracle.entries import Entry, Packet
from tests.oracle.fair_lines import FairLines
from tests.oracle.link import Link, Outcome
from tests.oracle.pools import Account, Payer, Pool

FLUSH_ROUNDS = 4
"""Batches that a client gets at one opportunity."""

FLUSH_PACKETS = 64
NOTICE_BYTES = 48


@dataclass(slots=True, eq=False)
class ClientQueue:
    """Everything on its way to one client."""

    number: int
    link: Link
    count: Counter[str]
    """The counters of the whole model; ``held_bytes`` is the memory of all queues, shared packets counted once."""
    room: Pool
    held_limit: int
    abandoned: list[ClientQueue]
    """Queues whose memory is still to be freed."""
    uid: int | None = None
    account: Account | None = None
    soft: SoftMode = SoftMode.QUEUE
    hard: HardMode = HardMode.DISCARD
    order: Order = Order.QUEUE
    waiting: list[Entry] = field(default_factory=list)
    notes: list[Entry] = field(default_factory=list)
    """Packets of the bus itself, unless the order is ``QUEUE``."""
    fixed: int = 0
    """With the order ``LATEST``: the first entries that newer messages do not replace, because they were there before the order."""
    lines: FairLines = field(default_factory=FairLines)
    """With the order ``FAIR``: what is sent after ``waiting``."""
    batch_bytes: int = 0
    """The longest batch that the client gets; 0 for none."""
    is_broken: bool = False
    is_failed: bool = False
    """The client asked to be disconnected rather than lose a packet, and a packet was lost."""
    has_blocked: bool = False
    """The last offer must block its publisher."""
    has_paced: bool = False
    """It blocks only because the publisher has asked for that."""
    unreported_losses: int = 0
    """Losses of which the client was not notified."""
    noticed_losses: int = 0
    """Losses of which the client was notified, and the sink not yet."""
    unreported_replacements: int = 0
    left_packets: int = 0
    left_bytes: int = 0
    has_last_words: bool = False
    leaving: list[Entry] = field(default_factory=list)
    """What was abandoned in this turn, and is freed at its end."""
    leaving_bytes: int = 0
    leaving_keys: int = 0
    delivered_packets: int = 0
    delivered_bytes: int = 0
    lost_packets: int = 0
    replaced_packets: int = 0

    @property
    def owner(self) -> Payer:
        """The user that is charged for the connection."""
        return None if self.account is None else self.account.uid

    # -- what is published

    def offer(self, entries: list[Entry], *, may_block: bool, is_paced: bool = False) -> None:
        """Deliver messages: to the client while nothing waits, then to the queue; the modes decide about the rest."""
        self.count["deliveries"] += len(entries)
        outcome = Outcome.FULL
        if not self.is_broken and not self.room.packets and not self.unreported_losses:
            taken, outcome = self._transmit(entries)
            for entry in entries[:taken]:
                entry.packet.handed += 1
            entries = entries[taken:]
        if self.is_broken:
            self.count["abandoned_packets"] += len(entries)
            for entry in entries:
                entry.packet.missed.append(self.number)
            return
        if outcome is Outcome.TOO_LONG:
            self._discard(entries[0])
            self._notify_of_losses()
            entries = entries[1:]
        for entry in entries:
            self._enqueue(entry, may_block=may_block, is_paced=is_paced)
        if outcome is Outcome.TOO_LONG or (self.unreported_losses and not self.room.packets):
            self.flush()

    def post(self, data: bytes, payer: Payer = None, *, is_message: bool = False) -> None:
        """Deliver one packet of the bus itself behind what waits; no mode applies, all bounds do. *payer* has caused it, or the client.
        With the order ``FAIR`` a message of a group or an event (*is_message*) waits for its user's turn."""
        payer = self.owner if payer is None else payer
        self.count["deliveries"] += 1
        entry, outcome, taken = Entry(Packet(data, is_note=not (is_message and self.order is Order.FAIR)), None, payer), Outcome.FULL, 0
        if not self.is_broken and not self.room.packets and not self.unreported_losses:
            taken, outcome = self._transmit([entry])
        if self.is_broken:
            self.count["abandoned_packets"] += 1
        elif outcome is Outcome.TOO_LONG:
            self._lose()
            self.flush()
        elif outcome is Outcome.FULL and not taken:
            fits = self.room.has_space(entry.cost) and self.room.may_share(self.owner, payer, entry.cost)
            if fits and self._is_allowed(payer, entry.cost) and self._notify_of_losses():
                self._keep(entry)
            else:
                self._lose()

    def post_loss(self, count: int, payer: Payer) -> None:
        """Deliver the notice of a loss that *payer* has reported; if it does not fit, the next notice counts what is lost."""
        before = self.lost_packets
        self.post(b"CMSG !/bus/lost\0%d" % count, payer)
        if self.lost_packets != before and count > 1:
            self.count["deliveries"] += count - 1
            self._lose(count - 1)

    def flush(self) -> None:
        """Send what waits, as far as there is room, for a bounded number of batches."""
        for _ in range(FLUSH_ROUNDS):
            self._notify_of_losses()
            if not self.room.packets:
                break
            outcome = self._send_rest()
            if outcome is Outcome.TAKEN:
                outcome = self._send_notes()
            if outcome is Outcome.TAKEN:
                outcome = self._notify_of_replacements()
            if outcome is Outcome.TAKEN:
                outcome = self._send_messages()
            if self.is_broken:
                self.abandon()
            if outcome in {Outcome.FULL, Outcome.GONE}:
                break
        if not self.is_broken:
            self._notify_of_losses()

    def is_closed(self, payer: Payer, cost: int) -> bool:
        """Return whether a message that costs so much is lost to this client whatever it is."""
        if self.is_broken:
            return True
        is_plain = self.soft is SoftMode.QUEUE and self.hard is HardMode.DISCARD and self.order not in {Order.LATEST, Order.FAIR}
        if not self.room.packets or not is_plain:
            return False
        if not self.room.has_space(cost) or not self.room.may_share(self.owner, payer, cost) or not self._is_allowed(payer, cost):
            return True
        notice = waiting_bytes(NOTICE_BYTES)
        return self.unreported_losses > 0 and not (self.room.has_space(notice) and self._is_allowed(self.owner, notice))

    def set_order(self, order: Order) -> None:
        """Set the order of messages that wait. Those that wait now are not replaced, and replace nothing."""
        if order is not self.order:
            for entry in self._replaceable():
                self._charge(entry.payer, -KNOWN_KEY_BYTES)
            self.order, self.fixed = order, len(self.waiting)
            self.lines.close(self.waiting)

    def renew(self) -> None:
        """Wait in one queue after a restart, if the order has changed from ``FAIR`` before."""
        if self.lines.is_closed:
            self.lines.merge(self.waiting)
            self.fixed = len(self.waiting)

    def is_below(self, percent: int) -> bool:
        """Return whether at most *percent* of the queue's bounds is used."""
        room = self.room
        return room.packets * 100 <= room.packets_limit * percent and room.bytes * 100 <= room.bytes_limit * percent

    def may_resume(self, payer: Payer, low_water: int, *, is_paced: bool) -> bool:
        """Return whether a publisher of the user *payer* that waits for this client is read again."""
        if not self.room.packets:
            return True
        if self.soft is SoftMode.BLOCK:
            return False
        return not any(room.is_pressed(self.owner, payer) for room in self._rooms()) if is_paced else self.is_below(low_water)

    # -- the end

    def abandon(self) -> None:
        """Discard what waits, because the connection ends. The user and the whole bus are charged until the end of the turn."""
        self.count["abandoned_packets"] += self.room.packets
        if not self.has_last_words:
            self.left_packets += self.room.packets
            self.left_bytes += self.room.bytes
        self.leaving_bytes += self.room.bytes
        if self.account is not None:
            self.account.leaving += self.room.bytes
        held = self.count["held_bytes"]
        for entry in self._replaceable():
            self._charge(entry.payer, -KNOWN_KEY_BYTES)
        self.leaving_keys += held - self.count["held_bytes"]
        self.count["held_bytes"] = held
        self.waiting += self.lines.abandoned()
        if self.notes or self.waiting:
            self.abandoned.append(self)
        for entry in (*self.notes, *self.waiting):
            self._discharge(entry)
            self.leaving.append(entry)
        self.notes.clear()
        self.waiting.clear()
        self.fixed = 0

    def free(self, pass_on: Callable[[Entry, Payer], bool]) -> None:
        """Free what was abandoned; *pass_on* looks at each entry before."""
        self.count["held_bytes"] -= self.leaving_keys
        if self.account is not None:
            self.account.leaving -= self.leaving_bytes - sum(entry.cost for entry in self.leaving)
        self.leaving_bytes = self.leaving_keys = 0
        for entry in self.leaving:
            pass_on(entry, self.uid)
            self._drop(entry)
            if self.account is not None:
                self.account.leaving -= entry.cost
        self.leaving.clear()

    def end_with(self, words: bytes) -> None:
        """Discard what waits, and offer *words* as the last packet."""
        self.abandon()
        self.noticed_losses += self.unreported_losses
        self.unreported_losses = self.unreported_replacements = 0
        self.has_last_words = True
        self.post(words)

    # -- whether a message may wait

    def _enqueue(self, entry: Entry, *, may_block: bool, is_paced: bool) -> None:
        """Let a message wait or discard it. With the order ``LATEST`` it takes the place of an older one of its key."""
        has_key = self.order is Order.LATEST and not self.lines and not entry.packet.is_note
        older = self._older_of(entry) if has_key else None
        cost = entry.cost + KNOWN_KEY_BYTES * has_key
        if older is None:
            # A loss notice goes in front of a packet that waits.
            may_wait = self._may_wait(entry.payer, cost, may_block=may_block, is_paced=is_paced) and self._notify_of_losses()
        else:
            self._charge_all(older, -1)
            may_wait = self._may_wait(entry.payer, cost, may_block=may_block, is_paced=is_paced)
            self._charge_all(older, 1)
        if not may_wait:
            self._discard(entry)
            return
        entry.packet.queued += 1
        self._keep(entry)
        if has_key:
            self._charge(entry.payer, KNOWN_KEY_BYTES)
        if older is not None:
            self._charge(older.payer, -KNOWN_KEY_BYTES)
            self._release(older)
            self.waiting[self.waiting.index(older)] = self.waiting.pop()
            self.replaced_packets += 1
            self.unreported_replacements += 1
            self.count["replaced_packets"] += 1

    def _may_wait(self, payer: Payer, cost: int, *, may_block: bool, is_paced: bool) -> bool:
        """Return whether a message may wait: the modes decide. Notes whether its publisher must wait, or the client be disconnected."""
        if self.soft in {SoftMode.DISCARD, SoftMode.ERROR}:
            self.is_failed |= self.soft is SoftMode.ERROR
            return False
        if not self._is_allowed(payer, cost):
            return False
        fits, has_share = self.room.has_space(cost), self.room.may_share(self.owner, payer, cost)
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

    def _is_allowed(self, payer: Payer, cost: int) -> bool:
        """Return whether the user and the whole bus have room, whatever this queue has."""
        if self.account is None:
            return True
        room, cost = self.account.room, cost + self.account.leaving
        if not room.has_space(cost) or not room.may_share(self.owner, payer, cost):
            return False
        return self.count["held_bytes"] + room.bytes + cost <= self.held_limit

    def _replaceable(self) -> list[Entry]:
        """Return the messages that newer ones of their keys replace."""
        return self.waiting[self.fixed :] if self.order is Order.LATEST and not self.lines else []

    def _older_of(self, entry: Entry) -> Entry | None:
        """Return the message that waits with the same key, if it may be replaced."""
        head = entry.packet.data[: entry.packet.data.index(0) + 1]
        return next((each for each in self._replaceable() if each.packet.data.startswith(head)), None)

    # -- accounting

    def _keep(self, entry: Entry) -> None:
        """Add an entry to the queue."""
        self._charge_for(entry)
        if entry.packet.is_note and self.order is not Order.QUEUE:
            self.notes.append(entry)
        elif self.order is Order.FAIR or self.lines:
            self.lines.add(entry, entry.payer)
        else:
            self.waiting.append(entry)

    def _charge_for(self, entry: Entry) -> None:
        """Account for an entry that waits."""
        for part in entry.parts():
            self.count["held_bytes"] += 0 if part.holders else packet_bytes(len(part.data))
            part.holders += 1
        self.count["held_bytes"] += ENTRY_BYTES
        for room in self._rooms():
            room.charge(self.owner, entry.payer, entry.cost)

    def _release(self, entry: Entry) -> None:
        """Account for an entry that leaves the queue."""
        self._drop(entry)
        self._discharge(entry)

    def _drop(self, entry: Entry) -> None:
        """Free the memory of an entry that nobody refers to any more."""
        for part in entry.parts():
            part.holders -= 1
            self.count["held_bytes"] -= 0 if part.holders else packet_bytes(len(part.data))
        self.count["held_bytes"] -= ENTRY_BYTES

    def _discharge(self, entry: Entry) -> None:
        """Take an entry out of the accounts."""
        for room in self._rooms():
            room.charge(self.owner, entry.payer, entry.cost, -1)

    def _charge(self, payer: Payer, size: int) -> None:
        """Charge the knowledge where a key waits."""
        self.count["held_bytes"] += size
        for room in self._rooms():
            room.charge(self.owner, payer, size, packets=0)

    def _charge_all(self, older: Entry, sign: int) -> None:
        """Take a message that may be replaced out of the accounts, or put it back: only its successor is to be judged."""
        if sign > 0:
            for room in self._rooms():
                room.charge(self.owner, older.payer, older.cost)
        self._charge(older.payer, sign * KNOWN_KEY_BYTES)
        if sign < 0:
            for room in self._rooms():
                room.charge(self.owner, older.payer, older.cost, -1)

    def _rooms(self) -> tuple[Pool, ...]:
        """Return the pools that an entry is charged to."""
        return (self.room,) if self.account is None else (self.room, self.account.room)

    # -- losses

    def _discard(self, entry: Entry) -> None:
        """Lose a message."""
        self._lose()
        if self.order is Order.FAIR:
            self.lines.lose(entry.payer)
        entry.packet.discarded += 1
        entry.packet.foreign_losses += entry.uid != self.uid
        entry.packet.missed.append(self.number)

    def _lose(self, count: int = 1) -> None:
        """Count losses."""
        self.lost_packets += count
        self.unreported_losses += count
        self.count["lost_packets"] += count
        if self.account is not None:
            self.account.lost_packets += count

    def _loss_notice(self, count: int, noticed: int = 0) -> Entry:
        """Return a notice of *count* losses, which replaces one of *noticed* losses."""
        self.noticed_losses += count
        self.unreported_losses -= count
        self.count["deliveries"] += 1
        return Entry(Packet(b"CMSG !/bus/lost\0%d" % (count + noticed), is_note=True), None, self.owner)

    def _notify_of_losses(self) -> bool:
        """Queue a loss notice if there is room; return whether the client was notified of all losses."""
        cost = waiting_bytes(NOTICE_BYTES)
        while self.order is Order.FAIR and self.lines.gaps and self.room.has_space(cost) and self._is_allowed(self.owner, cost):
            user, count = self.lines.gaps.popitem(last=False)
            older, noticed = self.lines.take_notice(user)
            notice = self._loss_notice(count, noticed)
            if older is not None:
                self._release(older)
                self.count["deliveries"] -= 1
            self._charge_for(notice)
            self.lines.add(notice, user, count + noticed)
        if self.lines.gaps and self.order is Order.FAIR:
            return False
        if self.unreported_losses and self.room.has_space(cost) and self._is_allowed(self.owner, cost):
            self._keep(self._loss_notice(self.unreported_losses))
        return not self.unreported_losses

    def _notify_of_replacements(self) -> Outcome:
        """Send the number of messages replaced since the last such notice."""
        if not self.unreported_replacements:
            return Outcome.TAKEN
        notice = Packet(b"CMSG !/bus/replaced\0%d" % self.unreported_replacements, is_note=True)
        taken, outcome = self._transmit([Entry(notice)])
        if taken:
            self.unreported_replacements = 0
            self.count["deliveries"] += 1
        return Outcome.TAKEN if outcome is Outcome.TOO_LONG else outcome

    # -- what goes out

    def _send_rest(self) -> Outcome:
        """Send the rest of a packet of which the client has got a part: only streams have one."""
        return Outcome.TAKEN

    def _send_notes(self) -> Outcome:
        """Send the packets of the bus itself that do not wait among the messages."""
        while self.notes:
            outcome = self._send(self.notes, self.notes[:FLUSH_PACKETS])
            if outcome is Outcome.TOO_LONG:
                self._lose()
            elif outcome is not Outcome.TAKEN:
                return outcome
        return Outcome.TAKEN

    def _send_messages(self) -> Outcome:
        """Send one batch of messages, by the client's order."""
        outcome = self._send(self.waiting, self._next_messages())
        if outcome is Outcome.TOO_LONG:
            self._lose()
            if self.order in {Order.QUEUE, Order.FAIR}:
                # Only of this one: the other losses come after what waits.
                notice = self._loss_notice(1)
                self._charge_for(notice)
                self.waiting.insert(0, notice)
        return outcome

    def _send(self, queue: list[Entry], chosen: list[Entry]) -> Outcome:
        """Send the *chosen* entries of a queue, and remove those that were taken or never fit."""
        taken, outcome = self._transmit(chosen)
        for entry in chosen[: taken + (outcome is Outcome.TOO_LONG)]:
            if queue is self.waiting and self.fixed:
                self.fixed -= 1
            elif queue is self.waiting and self.order is Order.LATEST:
                self._charge(entry.payer, -KNOWN_KEY_BYTES)
            self._release(entry)
            queue.remove(entry)
        return outcome

    def _next_messages(self) -> list[Entry]:
        """Return the messages that go next."""
        if self.lines:
            self.lines.take_turns(self.waiting)
            self.fixed = len(self.waiting) if self.order is Order.LATEST else 0
        if self.order is Order.STACK:
            return self.waiting[: -FLUSH_PACKETS - 1 : -1]
        if self.order is Order.RANDOM:
            oldest = self.waiting[:RANDOM_PACKETS]  # sorted() keeps the older first among equals
            return sorted(oldest, key=lambda each: -len(each.packet.data) if each.packet.holders == 1 else 0)[:FLUSH_PACKETS]
        return self.waiting[:FLUSH_PACKETS]

    def _transmit(self, entries: Sequence[Entry]) -> tuple[int, Outcome]:
        """Send entries, in batches if the client wants them; return how many were taken, and why not more."""
        done = 0
        while done < len(entries):
            wires = [entry.wire for entry in entries[done:]]
            wires = wires[: self._fitting(wires)]
            outcome = self.link.offer(join_batch(wires) if len(wires) > 1 else wires[0])
            self.is_broken |= outcome is Outcome.GONE
            if outcome is Outcome.TOO_LONG and len(wires) > 1:
                self.batch_bytes //= 2  # down to packets that go alone
                continue
            if outcome is not Outcome.TAKEN:
                return done, outcome
            length = sum(map(len, wires))
            self.delivered_packets += len(wires)
            self.delivered_bytes += length
            self.count.update(delivered_packets=len(wires), delivered_bytes=length)
            if len(wires) > 1:
                self.count.update(delivered_batches=1, batched_packets=len(wires))
            done += len(wires)
        return done, Outcome.TAKEN

    def _fitting(self, wires: Sequence[bytes]) -> int:
        """Return how many packets go out as one."""
        size = len(BATCH_HEAD)
        limit = 0 if self.order is Order.FAIR else self.batch_bytes
        for count, wire in enumerate(wires):
            size += LENGTH_BYTES + len(wire)
            if size > limit:
                return max(count, 1)
        return len(wires)
