"""The state of a client: what it sends, and what a received packet means. No I/O: the links in ``sync`` and ``asyncio`` do that.

Duties of a link:

- send the packets of ``outgoing``, in order, before any other packet, and report to it when the kernel has them;
- set ``is_dirty`` when it has sent any other packet;
- give every received packet to :meth:`Session.receive`, and read nothing while ``stalled`` is not empty;
- when the connection ends, call :meth:`Session.disconnected`; on a new connection, :meth:`Session.reconnected`, then
  :func:`~sbus.resubscription.resubscribe`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from sbus.bus_calls import AddressCall, Call, Expects, PendingReplies, ReceiptCall, parse_count, request_words
from sbus.errors import AnswerLost, NotSubscribed, RemoteRefusal, SbusError, refusal_of
from sbus.features import Batching, Pacing, Turns, group_question, pacing_question
from sbus.inbox import Bounds, Inbox, Routes
from sbus.incoming import GROUP_HEAD, SENT_HEAD, MessageRun, Senders, measure_run, message_of
from sbus.items import Message, Reconnected
from sbus.notices import NoticeLog, Refusals
from sbus.outgoing import Outgoing
from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import KeySpace, parse_connection_address
from sbus.protocol.memberships import split_stored, subscription_packet, unsubscription_packet
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, MAX_PACKET_BYTES, control_packet, parse_batch
from sbus.reconnection import SavedSettings
from sbus.statistics import Statistics


class MessageObserver(Protocol):
    """An observer that sees the messages of a session before its inboxes do: the calls that wait for their responses."""

    def take(self, message: Message) -> bool:
        """Look at *message*; return whether it is for the observer alone."""

    def watches(self, key: bytes) -> bool:
        """Return whether the observer expects messages with *key*, though inboxes may have them too."""

    def lost(self) -> None:
        """Note that packets for this connection were lost."""

    def disconnected(self, make_error: Callable[[], SbusError]) -> None:
        """Fail everything that waits: the connection has ended."""


class Session:
    """The state of one client: subscriptions, pending calls, packets to send, counters. It outlives its connections."""

    def __init__(self, separator: bytes = b"/", bounds: Bounds | None = None, *, batching: bool = False) -> None:
        self.separator = separator
        self.outgoing = Outgoing(MAX_PACKET_BYTES)
        self.counters = Statistics()
        """Without what live inboxes and ``outgoing`` count themselves; :meth:`statistics` adds that."""
        self.settings = SavedSettings()
        self.pacing = Pacing(self.outgoing)
        self.batching = Batching(self.outgoing, self.settings, self.counters, is_wanted=batching)
        self.turns = Turns(self.outgoing, self.settings)
        self.routes = Routes(KeySpace(separator))
        self.stalled: set[Inbox] = set()
        self.notice_log = NoticeLog()
        self.refusals = Refusals(self.notice_log)
        self.is_dirty = False
        """Whether a packet that may cause an error has been sent since the last barrier."""
        self.address = b""
        """The connection's own address, ``!/conn/<id>/``; empty until the bus has been asked, and after the connection has ended."""
        self.previous_address = b""
        """The address of the last connection that knew its own."""
        self.tap_inbox: Inbox | None = None
        """The inbox for the bus's traffic, ``!/tap``."""
        self._observer: MessageObserver | None = None
        self._senders = Senders()
        self._bounds = bounds or Bounds()
        self._pending = PendingReplies()
        self._only_inbox: Inbox | None = None
        self._unsettled = 0
        self._last_refusal: tuple[int, RemoteRefusal] | None = None

    # Received

    def receive(self, packet: bytes, taker: Inbox | None = None) -> Message | None:
        """Handle one packet from the bus: queue a message, or finish a call. Handle each packet in a batch.

        A message that is for *taker* alone is returned instead of queued, if no item waits before it. Most messages are, and that saves
        a third of the work.

        Raises ProtocolError if no bus sends this packet: close the connection.
        """
        if packet.startswith(BATCH_HEAD):
            self._receive_batch(packet)
            return None
        self.counters.received += 1
        message = message_of(packet)
        if message is not None:
            return self._receive_message(message, taker)
        return self._receive_rare(packet, taker)

    def _receive_single(self, packet: bytes) -> None:
        """Queue a message that is not in a run, or do as :meth:`_receive_rare`."""
        self.counters.received += 1
        message = message_of(packet)
        if message is not None:
            self._receive_message(message, None)
        else:
            self._receive_rare(packet, None)

    def _receive_rare(self, packet: bytes, taker: Inbox | None) -> Message | None:
        """Handle a packet that is neither a batch nor a message without its sender; return a message as :meth:`receive` does."""
        if packet.startswith(SENT_HEAD):
            return self._receive_message(self._senders.message(packet), taker)
        if packet.startswith(GROUP_HEAD):
            message, group = self._senders.message_of_group(packet)
            self._deliver(message, self.routes.find_member(message.key_bytes, group))
        else:
            self._receive_control(packet)
        return None

    @property
    def last_refusal(self) -> RemoteRefusal | None:
        """The error that the bus sent last, if no packet came after it: the reason why the bus is about to close the connection."""
        return self._last_refusal[1] if self._last_refusal and self._last_refusal[0] == self.counters.received else None

    # Calls and subscriptions

    def ping(self) -> Call:
        """Put a barrier into ``outgoing``. Its call gets an error that earlier packets caused."""
        return self._send_call(Call("ping", Expects.PONG))

    def control(self, key: bytes, payload: bytes | None = None) -> Call:
        """Put a control message into ``outgoing``; its call gets the response with the same key.

        Raises:
            ProtocolError: *key* has a NUL.
            PayloadTooLarge: the connection cannot send it.
        """
        if key == controls.ADDRESS:
            return self.ask_address()
        packet = self.outgoing.fitting(control_packet(key, payload))
        self.remember_mode(key, packet)
        return self._send_call(Call(request_words("CMSG", key), Expects.ANSWER, key), packet)

    def send_call(self, call: Call, *packets: bytes) -> Call:
        """Put *packets* into ``outgoing``, all or none, fenced off from earlier packets that may cause errors; *call* gets the reply.

        Raises:
            PayloadTooLarge: the connection cannot send one of them.
        """
        for packet in packets:
            self.outgoing.fitting(packet)
        self.pacing.prepare(packets[-1])
        return self._send_call(call, *packets)

    def send_quietly(self, packet: bytes) -> None:
        """Put a packet into ``outgoing`` that has no response, and causes no error."""
        self.outgoing.put(packet)

    def ask_address(self, learn: Callable[[bytes], None] | None = None) -> Call:
        """Put the question for the own address into ``outgoing``; *learn*, by default :meth:`learn_address`, gets the response first."""
        return self._send_call(AddressCall(learn or self.learn_address), control_packet(controls.ADDRESS))

    def learn_address(self, address: bytes) -> None:
        """Note the connection's own address. Raises ProtocolError if it is malformed."""
        parse_connection_address(address)
        self.address = address

    def publish(self, packet: bytes) -> ReceiptCall:
        """Put a MSG into ``outgoing`` whose call gets a receipt. Raises PayloadTooLarge if the connection cannot send it."""
        call = ReceiptCall(b"sbus/%d" % (self._pending.last_token + 1))
        self.send_call(call, control_packet(controls.RECEIPT_ALWAYS, call.token), packet)
        return call

    def remember_mode(self, key: bytes, packet: bytes) -> None:
        """Save *packet* for the next connection, if its *key* sets a mode."""
        if not self.pacing.set_by(key):
            self.settings.save(key, packet)
            self._update_only_inbox()

    def ask_pacing(self) -> Call:
        """Put the question whether the bus knows pacing into ``outgoing``; its call fails with Unsupported if not."""
        return self._send_call(pacing_question(self.pacing), control_packet(controls.FEATURES))

    def ask_for_batches(self) -> None:
        """Put the question whether the bus takes batches into ``outgoing``, unless it has been asked."""
        if self.batching.may_ask:
            self._send_call(self.batching.question(), control_packet(controls.FEATURES))

    def observe(self, observer: MessageObserver) -> None:
        """Show every message to *observer* first."""
        self._observer = observer
        self._update_only_inbox()

    def new_inbox(self, patterns: Sequence[bytes], bounds: Bounds | None = None) -> Inbox:
        """Return an inbox that does not receive messages yet."""
        return Inbox(list(patterns), bounds or self._bounds, self.stalled)

    def subscribe(self, inbox: Inbox) -> list[Call]:
        """Route messages to *inbox*, and put its SUBs into ``outgoing``, each with a barrier, so that a refusal names its pattern."""
        self.batching.request()
        for pattern in inbox.patterns:
            self.outgoing.fitting(subscription_packet(pattern))
        calls = self.ask_groups(inbox.patterns)
        calls += [self.subscribe_pattern(pattern) for pattern in inbox.patterns]
        self.routes.add(inbox)
        self._update_only_inbox()
        return calls

    def ask_groups(self, patterns: Sequence[bytes]) -> list[Call]:
        """Put the question whether the bus knows queue groups into ``outgoing``, if one of the stored *patterns* is that of a member."""
        is_member = any(split_stored(pattern)[1] for pattern in patterns)
        return [self._send_call(group_question(), control_packet(controls.FEATURES))] if is_member else []

    def subscribe_pattern(self, pattern: bytes) -> Call:
        """Put the packet that stores *pattern*, and a barrier, into ``outgoing``."""
        return self._send_call(Call(request_words("SUB", pattern), Expects.SILENCE, pattern), subscription_packet(pattern))

    def roll_back(self, inbox: Inbox, calls: Sequence[Call]) -> None:
        """Undo a :meth:`subscribe` that failed or was cancelled: now for accepted SUBs, later for those without an outcome yet."""
        if not self._stop_routing(inbox):
            return
        self._hand_over(inbox)
        for call in calls:
            if call.key not in inbox.patterns:
                continue
            inbox.patterns.remove(call.key)
            undo = self._undo(call)
            if call.is_done:
                undo()
            else:
                call.on_done.append(undo)
                # Its messages may arrive until then: they must not go to the inbox that is now the only one.
                self._unsettled = self._pending.last_token
        self._update_only_inbox()

    def unsubscribe_all(self, inbox: Inbox) -> None:
        """End the subscription of *inbox*: no more messages are routed to it, and UNSUBs are sent. Harmless when already done.

        Queued messages of a queue group go to the other members of it on this connection.
        """
        patterns = inbox.kept if inbox.is_draining else inbox.patterns
        is_routed = self._stop_routing(inbox)
        if self._hand_over(inbox) or (is_routed and patterns):
            self._send_unsubscribe(*patterns if is_routed else ())  # its barrier also wakes a thread that waits for one of those items
        inbox.patterns.clear()

    def drain(self, inbox: Inbox, keep: bytes = b"") -> None:
        """Send UNSUBs, and end the subscription of *inbox* when everything has arrived that the bus sent before. Its items stay.

        Patterns that begin with *keep* are not unsubscribed from, until :meth:`unsubscribe_all`. Harmless when already done.
        """
        if inbox.is_draining or not inbox.patterns:
            return
        inbox.is_draining = True
        self.turns.end()
        inbox.kept = [pattern for pattern in inbox.patterns if keep and pattern.startswith(keep)]
        self.outgoing.put(*(unsubscription_packet(pattern) for pattern in inbox.patterns if pattern not in inbox.kept))
        call = self.ping()
        call.on_done.append(partial(self._drained, inbox, call))
        self._unsettled = self._pending.last_token
        self._update_only_inbox()

    def unsubscribe(self, pattern: bytes) -> None:
        """Remove one instance of *pattern*, from the newest subscription that has it.

        Raises:
            NotSubscribed: no subscription has it.
        """
        if self.routes.remove_pattern(pattern) is None:
            raise NotSubscribed(pattern)
        self._send_unsubscribe(pattern)

    # The connection

    def disconnected(self, make_error: Callable[[], SbusError], *, is_final: bool = True) -> None:
        """Forget the state of a connection that ended, and fail the pending calls with *make_error*'s errors.

        Unless it was the last connection, publications that have not been sent wait for the next one.
        """
        if (refusal := self.last_refusal) and self.refusals and self.refusals[-1] is refusal:
            self.refusals.pop()
        self.notice_log.connection.disconnected(make_error(), is_final=is_final)
        self.outgoing.disconnected(is_final=is_final)
        self.batching.disconnected()
        self.pacing.disconnected()
        self.is_dirty = False
        self._unsettled = 0
        self._pending.fail(make_error)
        self._last_refusal = None
        self.previous_address, self.address = self.address or self.previous_address, b""
        self._update_only_inbox()
        if self._observer is not None:
            self._observer.disconnected(make_error)

    def forked(self, make_error: Callable[[], SbusError]) -> None:
        """Do as :meth:`disconnected`, and forget what the parent process has received or not sent: it still has that."""
        self.disconnected(make_error)
        self.refusals.clear()
        for inbox in self._all_inboxes():
            inbox.clear()

    def reconnected(self, attempts: int, seconds: float) -> None:
        """Put ``Reconnected`` into every subscription."""
        self.counters.reconnects += 1
        self.notice_log.connection.reconnected(attempts, seconds)
        for inbox in self._all_inboxes():
            inbox.put_reconnected(Reconnected(attempts, seconds))

    def statistics(self) -> Statistics:
        """Return the counts up to now."""
        return replace(
            self.counters,
            delivered=self.counters.delivered + sum(inbox.delivered for inbox in self.routes.inboxes),
            lost_local=self.counters.lost_local + sum(inbox.discarded for inbox in self.routes.inboxes),
            batches_sent=self.outgoing.batches,
            unsent=self.outgoing.unsent,
        )

    def _receive_message(self, message: Message, taker: Inbox | None) -> Message | None:
        """Queue *message*, or return it if it is for *taker* alone and no item waits before it."""
        inbox = self._only_inbox
        if inbox is None:
            self._dispatch(message)
        elif inbox is taker and not (inbox.items or inbox.ready or inbox.lost):
            inbox.delivered += 1
            return message
        else:
            inbox.put(message)
        return None

    def _receive_batch(self, batch: bytes) -> None:
        """Handle the packets of a batch, in order."""
        self.counters.batches_received += 1
        place, end = len(BATCH_HEAD), len(batch)
        while True:
            after, count = measure_run(batch, place)
            if count:
                self.counters.received += count
                self._receive_run(MessageRun(batch, place, after, count))
                place = after
            else:
                packet = self._single(batch, place)
                self._receive_single(packet)
                place += LENGTH_BYTES + len(packet)
            if place >= end:
                return

    def _receive_run(self, run: MessageRun) -> None:
        """Queue the messages of *run*. For a single inbox they stay together, unless they are too small a part of the batch to keep it."""
        inbox = self._only_inbox
        if inbox is not None and run.end - run.place >= len(run.batch) // 2:
            inbox.put_run(run)
            return
        for message in run.messages():
            self._receive_message(message, None)

    def _single(self, batch: bytes, place: int) -> bytes:
        """Return the packet at *place* of *batch*. Raises ProtocolError if it is malformed."""
        try:
            return next(parse_batch(batch, place))
        except ProtocolError as error:
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent a {error.words}") from error

    def _all_inboxes(self) -> tuple[Inbox, ...]:
        """Return the inboxes of the subscriptions, and that of the tap if there is one."""
        return self.routes.inboxes if self.tap_inbox is None else (*self.routes.inboxes, self.tap_inbox)

    def _dispatch(self, message: Message) -> None:
        """Queue *message* in every inbox with a pattern that matches."""
        observer = self._observer
        if observer is not None and observer.take(message):
            return
        self._deliver(message, self.routes.find(message.key_bytes))

    def _deliver(self, message: Message, inboxes: Sequence[Inbox]) -> None:
        """Queue *message* in *inboxes*, and count it if there is none and no observer expects it."""
        if not inboxes and not (self._observer is not None and self._observer.watches(message.key_bytes)):
            self.counters.unclaimed += 1
        for inbox in inboxes:
            inbox.put(message)

    def _receive_control(self, packet: bytes) -> None:
        """Handle a packet that is not a message."""
        # Not parse_packet(): a tap record is longer than the largest packet by its line.
        head, nul, payload = packet.partition(b"\0")
        if not nul or not head.startswith(b"CMSG "):
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid packet: {packet[:24]!r}…")
        key = head[5:]
        if key == controls.ERROR:
            self._receive_error(payload)
        elif key == controls.LOST:
            self.lost(parse_count(controls.LOST, payload))
        elif key == controls.REPLACED:
            self._receive_replaced(payload)
        elif key == controls.PING and (token := self._pending.passed(payload)) is not None:
            if self._unsettled and token >= self._unsettled:
                self._unsettled = 0
                self._update_only_inbox()
        elif key == controls.TAP and self.tap_inbox is not None:
            self.tap_inbox.put(Message(key, payload))
        elif not self._pending.answered(key, payload):
            self.counters.unclaimed += 1

    def _receive_error(self, payload: bytes) -> None:
        """Give an error to its call, or keep it."""
        self.counters.refusals += 1
        refusal = refusal_of(payload)
        self._last_refusal = (self.counters.received, refusal)
        # An error that ends the connection is in the Disconnected that follows at once.
        if not (self._pending.refused(refusal) or (refusal.code is not None and refusal.code.disconnects)):
            self.keep_refusal(refusal)

    def keep_refusal(self, refusal: RemoteRefusal) -> None:
        """Keep an error that no call waited for."""
        self.counters.refusals_dropped += not self.refusals.keep(refusal)

    def lost(self, count: int) -> None:
        """Put a gap of *count* packets, 0 if that is unknown, into every subscription, and let no call wait for a reply that was lost."""
        self.counters.lost_remote += count
        self.counters.lost_unknown += not count
        self.notice_log.connection.lost(count, self.counters.lost_remote)
        for inbox in self._all_inboxes():
            inbox.put_gap(count)
        if self._pending.lost():
            self.send_barrier()
        if self._observer is not None:
            self._observer.lost()

    def _receive_replaced(self, payload: bytes) -> None:
        """Put the number of replaced messages into every subscription."""
        count = parse_count(controls.REPLACED, payload)
        self.counters.replaced += count
        for inbox in self._all_inboxes():
            inbox.put_replaced(count)

    def _send_call(self, call: Call, *packets: bytes) -> Call:
        """Put a request and its barriers into ``outgoing``, and return its call."""
        # A ping gets the errors of earlier packets, so it needs no barrier before it.
        if self.is_dirty and call.expects is not Expects.PONG:
            self.send_barrier()
        self.outgoing.put(*packets)
        self.send_barrier(call)
        return call

    def send_barrier(self, call: Call | None = None) -> None:
        """Put a barrier into ``outgoing``."""
        self.outgoing.put(self._pending.close_section(call))
        self.is_dirty = False

    def _send_unsubscribe(self, *patterns: bytes) -> None:
        """Put UNSUBs into ``outgoing``; until their barrier returns, messages for them may still arrive."""
        self.outgoing.put(*map(unsubscription_packet, patterns))
        self.send_barrier()
        self._unsettled = self._pending.last_token
        self._update_only_inbox()

    def _undo(self, call: Call) -> Callable[[], None]:
        """Return the function that undoes a SUB once its outcome is known."""

        def undo() -> None:
            # After AnswerLost it is unknown whether the bus stored the pattern. One instance too many does no harm. One too few would,
            # because another subscription may have the same pattern.
            unknown = isinstance(call.error, AnswerLost)
            if call.error is None or (unknown and not self.routes.holds(call.key)):
                self._send_unsubscribe(call.key)

        return undo

    def _drained(self, inbox: Inbox, call: Call) -> None:
        """End a subscription that has been drained, or whose connection has ended."""
        if isinstance(call.error, RemoteRefusal):
            self.keep_refusal(call.error)  # of an earlier packet
        inbox.is_drained = True
        if not inbox.kept:
            self._stop_routing(inbox)
            inbox.patterns.clear()

    def _hand_over(self, inbox: Inbox) -> int:
        """Drop the items of *inbox*, except those for other members of its queue group, which get them; return their number."""
        moved = self.routes.hand_over(inbox)
        self.counters.delivered -= moved  # the other inboxes count them too
        inbox.retire()
        return moved

    def _stop_routing(self, inbox: Inbox) -> bool:
        """Route no more messages to *inbox*, and keep its counts; return whether messages were routed to it."""
        if not self.routes.discard(inbox):
            return False
        self.counters.delivered += inbox.delivered
        self.counters.lost_local += inbox.discarded
        self._update_only_inbox()
        return True

    def _update_only_inbox(self) -> None:
        """Note the inbox that gets every message: the only inbox, unless messages of an ended one may arrive: out of order, even later."""
        is_unsettled = self._unsettled or self._observer is not None or self.settings.has(controls.ORDER_QUEUE)
        self._only_inbox = None if is_unsettled else self.routes.only
