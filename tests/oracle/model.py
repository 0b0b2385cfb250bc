"""A model of the switch, to hold the compiled one against: packets and room in, deliveries out, without sockets and with an explicit clock.

It is written from sbus-protocol(7) and sbusd/dataplane/contract.py, to be read: it tries every pattern and copies every packet.
"""

from __future__ import annotations

from collections import Counter

from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import BATCH_HEAD, MAX_BATCH_BYTES
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import End, HardMode, Order, PublishRule, Refusal, Sight, Sink, SoftMode
from sbusd.dataplane.counters import ConnectionCounters, SwitchCounters, UserCounters
from sbusd.dataplane.switch_state import ConnectionSettings
from tests.oracle.connection import Connection, receipt_packet
from tests.oracle.entries import Entry, Packet
from tests.oracle.fairness import Schedule
from tests.oracle.flow import FlowControl, nanoseconds
from tests.oracle.frames import FrameQueue
from tests.oracle.groups import Groups
from tests.oracle.link import Link, Ready, Received
from tests.oracle.pools import Account, Payer, Pool
from tests.oracle.queues import ClientQueue
from tests.oracle.reading import next_batch, unwrapped
from tests.oracle.routing import Router, can_match, patterns_of, sender_prefixes, tap_prefix
from tests.oracle.turns import Candidate, Clock, Turns

PACED_BYTES = 32_768
"""Bytes of a paced publisher that are routed before its recipients get them."""


class Model:
    """The data plane; see :class:`sbusd.dataplane.contract.Switch` for every method of the same name."""

    def __init__(self, sink: Sink, keyspace: KeySpace, limits: LimitSettings, refusals: tuple[bytes, ...]) -> None:
        self._sink = sink
        self._limits = limits
        self._refusals = refusals
        self.clock = Clock()
        self._connections: dict[int, Connection] = {}
        self._accounts: dict[int, Account] = {}
        self._ending: list[Connection] = []
        self._abandoned: list[ClientQueue] = []
        self.groups = Groups(keyspace, self._connections)
        self._count: Counter[str] = Counter()
        self._router = Router(keyspace, limits, self._connections)
        self._flow = FlowControl(limits, self.clock, self._connections, self._count)
        self._turn_time = nanoseconds(limits.turn_time)
        self._schedule = Schedule(turn_time=self._turn_time, batch_packets=limits.batch_packets)
        self._turns = Turns(self._schedule, self.clock, self._turn_time)
        self._undelivered = 0
        """Bytes routed since the last delivery."""
        self._is_vouching = False
        """The sender vouches for a message of the batch at hand."""
        self._is_secret = False
        """The message at hand has a private key."""

    def connect(self, number: int, link: Link) -> None:
        """Add a connection. The sink is not told."""
        room, kind = Pool(self._limits.queue_packets, self._limits.queue_bytes), FrameQueue if link.is_stream else ClientQueue
        out = kind(number, link, self._count, room, self._limits.queued_memory, self._abandoned)
        self._connections[number] = Connection(number, link, out)
        self._schedule.connect(number)

    def read_all_again(self) -> None:
        """Forget which clients have shut down their sending sides: whoever watches them from scratch finds it again."""
        for connection in self._connections.values():
            connection.is_reading = True
            connection.update_watch()

    # -- turns

    def take_turn(self, ready: list[Ready]) -> int:
        """Handle what is ready, in this order; return how many connections were."""
        self._count["turns"] += 1
        ready = ready + [Ready(number) for number in self._with_unread() if number not in {each.number for each in ready}]
        found = {each.number: each for each in ready}
        candidates = [Candidate(each.number, self._connections[each.number].payer, each.can_read) for each in ready]
        self._turns.take(candidates, lambda number: self._serve(found[number]), lambda number: self._pass_over(found[number]))
        self._end_blocks()
        for connection in list(self._connections.values()):
            count, connection.out.noticed_losses = connection.out.noticed_losses, 0
            if count:
                self._sink.lost(connection.number, count)
        while self._ending:
            self._close(self._ending.pop(0))
        # The queue that was abandoned last is freed first.
        while self._abandoned:
            self._abandoned.pop().free(self._pass_on)
        return len(ready)

    def _with_unread(self) -> list[int]:
        """Return the connections that go on with what was read of them before, the oldest first."""
        live = sorted(self._connections.values(), key=lambda each: each.number)
        return [each.number for each in live if each.unread and not each.blockers and not each.is_ending]

    def _pass_over(self, ready: Ready) -> None:
        """Send what waits for a connection that is not read in this turn."""
        if ready.can_write:
            self._flush(self._connections[ready.number])

    def _serve(self, ready: Ready) -> None:
        """Send what waits for a connection, and handle what it has sent."""
        connection = self._connections[ready.number]
        if connection.is_ending:
            return
        if ready.can_write:
            self._flush(connection)
        # A blocked publisher is not read, unless it has hung up.
        if connection.blockers and not ready.is_hung_up:
            return
        if connection.unread or (connection.is_reading and (ready.can_read or ready.is_hung_up)):
            if connection.unread or not self._flow.must_wait(connection, ready):
                self._handle_batch(connection)
        elif not connection.is_reading and ready.is_hung_up:
            self._finish(connection, End.HANGUP)

    def _flush(self, connection: Connection) -> None:
        """Send what waits for a connection."""
        connection.out.flush()
        self._after_send(connection)

    # -- reading

    def _handle_batch(self, connection: Connection) -> None:
        """Handle one batch of what a connection has sent."""
        refused: dict[Refusal, list[bytes]] = {}
        control_time = 0
        batch = next_batch(connection, self._schedule.read_limit(connection.number, connection.payer), self._flow, self._count)
        was_blocked, handled = connection.blockers > 0, 0
        connection.is_served = True
        self._is_vouching = False
        for each in batch:
            before = self.clock.now
            is_message = self._handle(connection, each, refused)
            control_time += self.clock.now - before
            handled += 1
            if connection.is_ending and not is_message:
                break
            if is_message and connection.is_paced:
                self._deliver_early(connection, len(unwrapped(connection, each)[2]))
                if connection.blockers and not was_blocked:
                    break
            if control_time > self._turn_time:
                break
        self._deliver(connection)
        for refusal, keys in sorted(refused.items()):
            self._sink.refused(connection.number, refusal, keys[0], len(keys))
        counted = batch if connection.is_ending else batch[:handled]
        connection.unread[:0] = batch[len(counted) :]
        # A batch among them has a fault, and counts when it is taken again.
        self._count["received_batches"] -= sum(not each.is_cut and each.data.startswith(BATCH_HEAD) for each in batch[len(counted) :])
        connection.received_packets += len(counted)
        connection.received_bytes += sum(len(each.data) for each in counted)
        self._count.update(received_packets=len(counted), received_bytes=sum(len(each.data) for each in counted))
        if not connection.unread or len(counted) < len(batch):
            self._flow.charge_unread(connection)
        who, is_owner = (connection.number, connection.payer), connection.sight >= Sight.ALL
        self._schedule.serve(*who, now=self.clock.now, count=len(counted), own=control_time, is_owner=is_owner)
        connection.is_served = False
        if connection.is_at_end and not connection.unread:
            self._finish(connection, End.HANGUP)

    # -- routing

    def _handle(self, sender: Connection, packet: Received, refused: dict[Refusal, list[bytes]]) -> bool:
        """Route a message and return True, or pass anything else to the sink."""
        to, origin, data = unwrapped(sender, packet)
        self._is_vouching = self._is_vouching or bool(origin)
        key, nul, _ = data[4:].partition(b"\0")
        is_message = data.startswith(b"MSG ") and nul != b""
        if not is_message and not packet.is_cut:
            self._deliver(sender)
            self._sink.control(sender.number, data)
            return False
        refusal = Refusal.TRUNCATED if packet.is_cut else self._router.refusal(sender, key)
        if refusal is None:
            self._route(sender, key, data, origin, to)
            return True
        refused.setdefault(refusal, []).append(key)
        sender.refused_packets += 1
        self._count["refused_packets"] += 1
        sender.share.append((Packet(self._router.error(sender, self._refusals[refusal], refusal, data), is_note=True), b""))
        wrapped = (b"CMSG !/from/",) * sender.may_vouch + (b"CMSG !/to/",) * sender.may_deliver
        if data.startswith((b"MSG ", *wrapped)):
            self._send_receipt(sender, Packet(data))
        return is_message and not packet.is_cut

    def _route(self, sender: Connection, key: bytes, data: bytes, origin: bytes, to: int) -> None:
        """Add a message to the shares of its recipients."""
        is_secret = self._router.is_secret(key)
        is_withheld = False
        if sender.receipt is not None and is_secret:
            self._deliver(sender)
            is_withheld = not self._sink.may_know_recipients(sender.number, key)
            if sender.is_ending:
                return
        self._count["messages"] += 1
        matching = [each for each in self._router.matching(key) if to in (0, each.number)]
        recipients = [each for each in matching if not each.is_ending and (each is not sender or each.echo)]
        size = len(data)
        chosen = [] if to and matching else self.groups.choose(sender, key, size, to)
        self._count["undeliverable"] += not recipients and not chosen
        members = [each for group in self.groups.members(key).values() for each in group if to in (0, each.number)]
        reached = [*recipients, *(member for member, _ in chosen)]
        missed = {each.number for each in (*matching, *members) if each not in reached}
        packet = Packet(data, missed=sorted(missed), origin=origin, to=to)
        is_apart = sender.is_paced and is_secret
        if is_apart:
            self._deliver(sender)
            self._is_secret = True
        for each in recipients:
            each.share.append((packet, b""))
        for each, group in chosen:
            each.share.append((packet, group))
        for each in self._router.taps(key):
            each.tapped.append(packet)
        self._send_receipt(sender, packet, is_withheld=is_withheld)
        if is_apart:
            self._deliver(sender)
            self._is_secret = False

    def _pass_on(self, entry: Entry, owner: Payer) -> bool:
        """Give an entry of a queue, if it is a message of a group of the user *owner*, to a member; return whether there is one."""
        member = self.groups.next_member(entry.wire, owner, entry.payer)
        if member is None or member.out.is_broken:
            return False
        self._count["redelivered_packets"] += 1
        member.out.post(entry.wire, entry.payer, is_message=True)
        self._after_send(member)
        return True

    def _send_receipt(self, sender: Connection, packet: Packet, *, is_withheld: bool = False) -> None:
        """If the sender has asked for a receipt, deliver everything up to this message, and send it."""
        if sender.receipt is None:
            return
        (token, always, lists), sender.receipt = sender.receipt, None
        listed = sorted({each.number for each in self._connections.values() if any(packet is shared for shared, _ in each.share)})
        self._deliver(sender)
        # That the queue of another user is full is that user's secret.
        losses = 0 if sender.sight >= Sight.ALL else packet.foreign_losses
        recipients = packet.handed + packet.queued + losses
        if not sender.is_ending and (always or is_withheld or not recipients):
            sender.out.post(receipt_packet(token, None if is_withheld else recipients, listed if lists else []))
            self._after_send(sender)

    # -- delivery

    def _deliver_early(self, sender: Connection, length: int) -> None:
        """Deliver what a paced publisher has sent so far, if a recipient is slow or it is much: what is offered at once must fit."""
        self._undelivered += length
        is_slow = any(each.share and each is not sender and each.out.room.packets for each in self._connections.values())
        if is_slow or self._undelivered > PACED_BYTES:
            self._deliver(sender)

    def _deliver(self, sender: Connection) -> None:
        """Give each recipient its share of what the sender has sent, and then the taps."""
        self._undelivered = 0
        prefix_of = sender_prefixes(sender, is_vouching=self._is_vouching)
        for recipient in list(self._connections.values()):
            if runs := recipient.take_share(prefix_of, sender):
                is_paced = self._flow.may_pace(sender, recipient, is_secret=self._is_secret)
                may_block = self._flow.may_block(sender, recipient)
                for group, entries in runs:
                    self._offer_run(recipient, group, entries, may_block=may_block, is_paced=is_paced)
                if recipient.out.has_blocked:
                    recipient.out.has_blocked = False
                    self._flow.block(recipient, sender, is_paced=recipient.out.has_paced)
                self._after_send(recipient)
        self._deliver_taps(sender)
        for each in self._connections.values():
            each.measured = None

    def _offer_run(self, recipient: Connection, group: bytes, entries: list[Entry], *, may_block: bool, is_paced: bool) -> None:
        """Offer a connection what it gets as a member of one group, or of none. What a member that has gone does not get is passed on."""
        delivered = recipient.out.delivered_packets
        recipient.out.offer(entries, may_block=may_block, is_paced=is_paced)
        if group and recipient.out.is_broken:
            for entry in entries[recipient.out.delivered_packets - delivered :]:
                entry.packet.queued += self._pass_on(entry, recipient.uid)

    def _deliver_taps(self, sender: Connection) -> None:
        """Give the taps what the sender has sent, with what became of it. A tap is not a recipient."""
        tapping = [(each, each.tapped) for each in self._connections.values() if each.tapped]
        prefixes = {packet: tap_prefix(sender, packet) for _, packets in tapping for packet in packets}
        results = {packet: (packet.handed + packet.queued, packet.foreign_losses) for packet in prefixes}
        for connection, packets in tapping:
            connection.tapped = []
            if not connection.is_ending:
                connection.out.offer([Entry(packet, prefixes[packet], sender.payer, sender.uid) for packet in packets], may_block=False)
        self._after_taps([each for each, _ in tapping])
        for packet, (recipients, losses) in results.items():
            packet.handed, packet.queued, packet.foreign_losses = recipients, 0, losses

    def _after_taps(self, taps: list[Connection]) -> None:
        """After all of *taps* were offered something: one that ends because of its queue leaves no room to the others."""
        for each in taps:
            if not each.is_ending:
                self._after_send(each)

    def _after_send(self, connection: Connection) -> None:
        """After anything was offered to a connection: disconnect it if it has failed, and resume publishers."""
        if connection.out.is_failed:
            connection.out.is_failed = False
            if not connection.is_ending:
                self._finish(connection, End.QUEUE_FULL)
                connection.out.end_with(self._refusals[Refusal.QUEUE_FULL])
        self._flow.after_send(connection)
        connection.update_watch()
        if connection.out.is_broken and not connection.is_reading:
            connection.is_at_end = True
            if not connection.unread and not connection.is_served:
                self._finish(connection, End.HANGUP)

    def _end_blocks(self) -> None:
        """Resume publishers that were blocked for too long."""
        place, blocking = 0, self._flow.blocking
        while place < len(blocking):
            connection = blocking[place]
            if self._flow.is_idle(connection):
                self._flush(connection)  # a slow reader makes progress before it is reported ready
            if self._flow.is_late(connection):
                self._flow.fall_back(connection)
            self._flow.end_holds(connection)
            place += blocking[place : place + 1] == [connection]

    # -- ends

    def _finish(self, connection: Connection, end: End) -> None:
        """Close a connection at the end of this turn."""
        if connection.end is None:
            connection.end = end
            self._ending.append(connection)

    def _close(self, connection: Connection) -> None:
        """Close a connection, and tell the sink."""
        out = connection.out
        out.abandon()
        counters = connection.counters()._replace(queued_packets=out.left_packets, queued_bytes=out.left_bytes)
        self._flow.unblock_all(connection)
        connection.unread.clear()
        self._flow.charge_unread(connection)
        account = out.account
        if account is not None:
            account.connections -= 1
            if not account.connections:
                del self._accounts[account.uid]
                self._schedule.leave(account.uid)
        del self._connections[connection.number]
        connection.link.close()
        if out.noticed_losses or out.unreported_losses:
            self._sink.lost(connection.number, out.noticed_losses + out.unreported_losses)
        self._sink.ended(connection.number, connection.end or End.HANGUP, counters)
        self._sink.closed(connection.number)

    def disconnect(self, connection: int, last_words: bytes = b"") -> None:
        """End a connection."""
        ended = self._connections[connection]
        if not ended.is_ending:
            if last_words:
                ended.out.end_with(last_words)
            self._finish(ended, End.DISCONNECTED)

    # -- what the control plane asks for

    def set_party(
        self,
        connection: int,
        uid: int,
        *,
        charged: int | None = None,
        blocks_others: bool = False,
        rules: int = 0,
        sight: Sight = Sight.OWN,
        cred: bytes = b"",
        may_vouch: bool = False,
        may_deliver: bool = False,
    ) -> None:
        """Set the user of a connection and what it may do."""
        party = self._connections[connection]
        party.blocks_others, party.rules, party.sight, party.cred = blocks_others, rules, sight, cred
        party.may_vouch, party.may_deliver = may_vouch, may_deliver
        if party.uid != uid:
            payer = uid if charged is None else charged
            party.out.uid, party.out.account = uid, self._accounts.setdefault(payer, Account(payer))
            party.out.account.connections += 1

    def set_user_limits(self, uid: int, packets: int, size: int) -> None:
        """Bound what waits for a user."""
        room = self._accounts[uid].room
        room.packets_limit, room.bytes_limit = packets, size

    def set_publish_rules(self, rules: tuple[PublishRule, ...]) -> None:
        """Set the rules for messages."""
        self._router.rules = rules

    def configure(self, connection: int, settings: ConnectionSettings) -> None:
        """Set what the connection has asked for itself."""
        configured = self._connections[connection]
        configured.echo, configured.wants_senders, configured.is_paced = settings.echo, settings.sender, settings.pace
        configured.out.soft, configured.out.hard = SoftMode(settings.soft), HardMode(settings.hard)
        configured.out.set_order(Order(settings.order))
        configured.out.batch_bytes = MAX_BATCH_BYTES if settings.batch else 0

    def settings(self, connection: int) -> ConnectionSettings:
        """Return what the connection has asked for itself."""
        asked = self._connections[connection]
        modes = int(asked.out.soft), int(asked.out.hard), int(asked.out.order)
        return ConnectionSettings(asked.echo, *modes, asked.wants_senders, asked.out.batch_bytes != 0, asked.is_paced)

    def set_tap(self, connection: int, pattern: bytes | None) -> None:
        """Set the tap of a connection."""
        self._connections[connection].tap = pattern

    def arm_receipt(self, connection: int, token: bytes, *, always: bool, lists: bool = False) -> None:
        """Ask for a receipt of the next message."""
        self._connections[connection].receipt = token, always, lists

    def subscribe(self, connection: int, pattern: bytes) -> None:
        """Add one instance of a pattern."""
        self._connections[connection].patterns[pattern] += 1

    def unsubscribe(self, connection: int, pattern: bytes) -> bool:
        """Remove one instance of a pattern; return whether there was one."""
        patterns = self._connections[connection].patterns
        if pattern not in patterns:
            return False
        patterns[pattern] -= 1
        if not patterns[pattern]:
            del patterns[pattern]
        return True

    def send(self, connection: int, packet: bytes) -> None:
        """Send a packet of the bus itself to one connection."""
        recipient = self._connections[connection]
        if not recipient.is_ending:
            recipient.out.post(packet)
            self._after_send(recipient)

    def announce(self, packet: bytes, *, sight: Sight, uid: int, payer: int, cred: bytes = b"") -> None:
        """Send a message of the bus itself to the subscribers that may know of it."""
        named = b"CMSG !/from/0/%b\0%b" % (cred, packet)
        matching = sorted(self._router.matching(packet[4:].partition(b"\0")[0]), key=lambda each: each.number)
        for each in matching:
            if (each.sight >= sight or each.uid == uid) and not each.is_ending:
                each.out.post(named if each.wants_senders else packet, payer, is_message=True)
                self._after_send(each)

    def report_loss(self, patterns: list[bytes], count: int, *, uid: int) -> int:
        """Send a loss notice to the connections with one of the patterns."""
        live = sorted((each for each in self._connections.values() if not each.is_ending), key=lambda each: each.number)
        # A pattern that can match nothing misses nothing.
        holders = [each for each in live if any(can_match(pattern) and pattern in patterns_of(each) for pattern in patterns)]
        for each in holders:
            each.out.post_loss(count, uid)
            self._after_send(each)
        return len(holders)

    def report(self, key: bytes, packet: bytes, *, uid: int) -> None:
        """Send a packet of the bus itself to the taps that match *key*."""
        for each in (taps := [each for each in self._router.taps(key) if not each.is_ending]):
            each.out.post(packet, uid)
        self._after_taps(taps)

    # -- what it has done

    def connections(self) -> list[int]:
        """Return the numbers of all connections, the oldest first."""
        return sorted(self._connections)

    def patterns(self, connection: int) -> dict[bytes, int]:
        """Return the patterns of a connection, each with its instances."""
        return dict(self._connections[connection].patterns)

    def blocked(self, connection: int) -> dict[int, bool]:
        """Return the publishers that wait for a connection, each with whether it asked for that by pacing."""
        return dict(self._connections[connection].blocked)

    def connection_counters(self, connection: int) -> ConnectionCounters:
        """Return the counters of a connection."""
        return self._connections[connection].counters()

    def user_counters(self, uid: int) -> UserCounters:
        """Return the counters of a user."""
        return self._accounts[uid].counters() if uid in self._accounts else UserCounters(0, 0, 0, 0)

    def counters(self) -> SwitchCounters:
        """Return the counters of the model."""
        live = [each.counters() for each in self._connections.values()]
        derived = {
            "connections": len(live),
            "queued_packets": sum(each.queued_packets for each in live),
            "queued_bytes": sum(each.queued_bytes for each in live),
            "subscriptions": sum(each.patterns.total() for each in self._connections.values()),
        }
        return SwitchCounters(**{name: derived.get(name, self._count[name]) for name in SwitchCounters._fields})
