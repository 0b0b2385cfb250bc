"""What a client sends, and what a packet that it receives means. No I/O: the links in ``sync_link`` and ``aio_link`` do that.

Duties of a link:

- send what ``outgoing`` says, in order, before anything else, and tell it when the kernel has it;
- set ``is_dirty`` when it has sent anything else;
- hand every received packet to :meth:`Session.receive`, and read nothing while ``stalled`` is not empty;
- when the connection ends, call :meth:`Session.disconnected`; on a new one :meth:`Session.resubscribe`, then :meth:`Session.reconnected`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from sbusd.client.bus_queries import AddressCall, FeaturesCall, ReceiptCall
from sbusd.client.connection_settings import Modes
from sbusd.client.errors import AnswerLost, NotSubscribed, RemoteRefusal, SbusError
from sbusd.client.inbox import Bounds, Inbox
from sbusd.client.message_batch import Run, measure_run, message_of
from sbusd.client.message_listener import Listener
from sbusd.client.messages import Message, Reconnected
from sbusd.client.outgoing import Outgoing
from sbusd.client.pacing import Pacing, PacingCall
from sbusd.client.pending_replies import Call, Expects, Ledger
from sbusd.client.routes import Routes
from sbusd.client.senders import SENT_HEAD, Senders
from sbusd.client.statistics import Statistics
from sbusd.protocol import controls
from sbusd.protocol.batches import BATCH_FEATURE, BATCH_HEAD, LENGTH_BYTES, parse_batch
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.limits import MAX_PACKET_BYTES
from sbusd.protocol.packets import control_packet, parse_error, subscribe_packet, unsubscribe_packet
from sbusd.protocol.peers import parse_address

_KEPT_REFUSALS = 64
"""Errors kept for the next receive; the oldest are the causes, so the newest are dropped, and counted."""


class Session:
    """The state of one client: subscriptions, calls that wait, packets to send, counters. It outlives its connections."""

    def __init__(self, separator: bytes = b"/", bounds: Bounds | None = None, *, batching: bool = False) -> None:
        self.outgoing = Outgoing(MAX_PACKET_BYTES)
        self.pacing = Pacing(self.outgoing)
        self.stalled: set[Inbox] = set()
        self.refusals: deque[RemoteRefusal] = deque()
        """Errors that no call waited for, oldest first: raise one at the next receive or ping."""
        self.is_dirty = False
        """Whether a packet that may draw an error has been sent since the last barrier."""
        self.address = b""
        """The connection's own address, ``!/conn/<id>/``; empty until it is asked for, and when the connection has ended."""
        self.tap_inbox: Inbox | None = None
        """Where what the bus tells of its traffic goes, ``!/tap``."""
        self.listener: Listener | None = None
        self._batching = batching
        self._has_asked = False
        self._stale_address = b""
        self._modes = Modes()
        self._senders = Senders()
        self._bounds = bounds or Bounds()
        self._routes = Routes(KeySpace(separator))
        self._ledger = Ledger()
        self._sole: Inbox | None = None
        self._unsettled = 0
        self._last_words: tuple[int, RemoteRefusal] | None = None
        self._replaced = 0
        self._received = self._lost_remote = self._lost_unknown = self._unclaimed = self._refused = self._refusals_dropped = 0
        self._retired_delivered = self._retired_discarded = self._reconnects = self._attempts = self._batches = self._batchless = 0

    # Received

    def receive(self, packet: bytes, taker: Inbox | None = None) -> Message | None:
        """Take in one packet from the bus: queue a message, or settle a call; of a batch, do so with each packet in it.

        A message that is for *taker* alone is returned instead of queued, if nothing waits in front of it: most are, and it saves
        a third of the work.

        Raises:
            ProtocolError: it is none that a bus sends; give up the connection.
        """
        if packet.startswith(BATCH_HEAD):
            self._receive_batch(packet)
            return None
        return self._receive_single(packet, taker)

    def _receive_single(self, packet: bytes, taker: Inbox | None = None) -> Message | None:
        """Do as :meth:`receive` with a packet that is no batch."""
        self._received += 1
        message = message_of(packet)
        if message is not None:
            return self._receive_message(message, taker)
        if packet.startswith(SENT_HEAD):
            return self._receive_message(self._senders.message(packet), taker)
        self._receive_control(packet)
        return None

    @property
    def last_words(self) -> RemoteRefusal | None:
        """The error that the bus sent last, if nothing came after it: why it is about to close the connection."""
        return self._last_words[1] if self._last_words and self._last_words[0] == self._received else None

    # Calls and subscriptions

    def ping(self) -> Call:
        """Put a barrier into ``outgoing``. Its call is told of an error that what was sent before drew."""
        return self._send_call(Call("ping", Expects.PONG))

    def control(self, key: bytes, payload: bytes | None = None) -> Call:
        """Put a control message into ``outgoing``; its call gets the answer under the same key.

        Raises:
            ProtocolError: *key* has a NUL.
            PayloadTooLarge: the connection cannot send it.
        """
        if key == controls.ADDRESS:
            return self.ask_address()
        packet = self.outgoing.fitting(control_packet(key, payload))
        self.remember_mode(key, packet)
        return self._send_call(Call(f"CMSG {repr(key)[1:]}", Expects.ANSWER, key), packet)

    def send_call(self, call: Call, *packets: bytes) -> Call:
        """Put *packets* into ``outgoing``, all or none, behind what may draw errors of its own; *call* gets what they are answered with.

        Raises:
            PayloadTooLarge: the connection cannot send one of them.
        """
        for packet in packets:
            self.outgoing.fitting(packet)
        self.pacing.prepare(packets[-1])
        return self._send_call(call, *packets)

    def send_quietly(self, packet: bytes) -> None:
        """Put a packet into ``outgoing`` that is not answered, and draws no error."""
        self.outgoing.put(packet)

    def ask_address(self) -> Call:
        """Put the question for the own address into ``outgoing``; once it is answered, ``address`` is known."""
        return self._send_call(AddressCall(self._learn_address), control_packet(controls.ADDRESS))

    def publish(self, packet: bytes) -> ReceiptCall:
        """Put a MSG into ``outgoing`` whose call gets a receipt. Raises PayloadTooLarge if the connection cannot send it."""
        call = ReceiptCall(b"sbusd.client/%d" % (self._ledger.last_token + 1))
        self.send_call(call, control_packet(controls.RECEIPT_ALWAYS, call.token), packet)
        return call

    def remember_mode(self, key: bytes, packet: bytes) -> None:
        """Take note of *packet*, if its *key* sets a mode, for the next connection."""
        if not self.pacing.told(key):
            self._modes.remember(key, packet)

    def ask_pacing(self) -> Call:
        """Put the question whether the bus knows pacing into ``outgoing``; its call fails with Unsupported if not."""
        return self._send_call(PacingCall(self.pacing), control_packet(controls.FEATURES))

    def want_batches(self) -> None:
        """Have the bus put what comes together into one packet, unless the program has said whether it wants that."""
        if self._batching and not self._modes.has(controls.BATCH_ON):
            packet = control_packet(controls.BATCH_ON)
            self.send_quietly(packet)
            self._modes.remember(controls.BATCH_ON, packet)

    def ask_for_batches(self) -> None:
        """Put the question whether the bus takes batches into ``outgoing``, unless it has been asked; ``outgoing`` is told the answer."""
        if self._batching and not self._has_asked:
            self._has_asked = True
            self.outgoing.takes_batches = None
            self._send_call(FeaturesCall(self._learn_features), control_packet(controls.FEATURES))

    def listen(self, listener: Listener) -> None:
        """Show every message to *listener* first."""
        self.listener = listener
        self._choose_sole()

    def new_inbox(self, patterns: Sequence[bytes]) -> Inbox:
        """Return an inbox that no message reaches yet."""
        return Inbox(list(patterns), self._bounds, self.stalled)

    def subscribe(self, inbox: Inbox) -> list[Call]:
        """Let messages reach *inbox*, and put its SUBs into ``outgoing``, each with a barrier, so that a refusal names its pattern."""
        self.want_batches()
        calls = self._send_patterns(inbox)
        self._routes.add(inbox)
        self._choose_sole()
        return calls

    def roll_back(self, inbox: Inbox, calls: Sequence[Call]) -> None:
        """Undo a :meth:`subscribe` that failed or was given up: now for the SUBs that were accepted, later for those still under way."""
        if not self._forget(inbox):
            return
        for call in calls:
            if call.key not in inbox.patterns:
                continue
            inbox.patterns.remove(call.key)
            undo = self._undo(call)
            if call.is_done:
                undo()
            else:
                call.on_done.append(undo)

    def unsubscribe_all(self, inbox: Inbox) -> None:
        """End the subscription of *inbox*: no message reaches it any more, and the bus is told. Harmless when done already."""
        if self._forget(inbox):
            self._send_unsubscribe(*inbox.patterns)

    def unsubscribe(self, pattern: bytes) -> None:
        """Remove one instance of *pattern*, of the newest subscription that holds it.

        Raises:
            NotSubscribed: none does.
        """
        if self._routes.remove_pattern(pattern) is None:
            raise NotSubscribed(pattern)
        self._send_unsubscribe(pattern)

    # The connection

    def disconnected(self, make_error: Callable[[], SbusError], *, is_final: bool = True) -> None:
        """Forget all that belongs to a connection that ended, and fail the calls that waited with *make_error*'s.

        Unless it was the last one, publications that have not left wait for the next.
        """
        if (words := self.last_words) and self.refusals and self.refusals[-1] is words:
            self.refusals.pop()
        self.outgoing.disconnected(is_final=is_final)
        self.outgoing.takes_batches = False
        self._has_asked = False
        self.is_dirty = False
        self.pacing.disconnected()
        self._unsettled = 0
        self._ledger.fail(make_error)
        self._last_words = None
        self._stale_address, self.address = self.address or self._stale_address, b""
        self._choose_sole()
        if self.listener is not None:
            self.listener.disconnected(make_error)

    def resubscribe(self) -> list[Call]:
        """Put the modes, and the SUBs of all subscriptions, into ``outgoing`` for a new connection; the calls tell how it went.

        Patterns under the old connection's address follow when the new one is known: the list grows then, so wait for its calls in order.
        """
        posts = self.outgoing.set_aside()
        for packet in self._modes.packets:
            self.outgoing.put(packet)
            self.is_dirty = True
        calls = [self.ask_pacing()] if self.pacing.is_known else []
        if self.pacing.always:
            self.pacing.prepare(b"")
        patterns = [pattern for inbox in self._routes.inboxes for pattern in inbox.patterns]
        old = self._stale_address
        if old and any(pattern.startswith(old) for pattern in patterns):

            def move(address: bytes) -> None:
                self._learn_address(address)
                calls.extend(self._send_pattern(pattern) for pattern in self._routes.move(old, address))

            calls.append(self._send_call(AddressCall(move), control_packet(controls.ADDRESS)))
        calls.extend(self._send_pattern(pattern) for pattern in patterns if not (old and pattern.startswith(old)))
        if posts:
            self.pacing.restore(posts)
            self.is_dirty = True
        return calls

    def reconnected(self, attempts: int, seconds: float) -> None:
        """Note in every subscription that the connection is new."""
        self._reconnects += 1
        for inbox in self._all_inboxes():
            inbox.put_reconnected(Reconnected(attempts, seconds))

    def attempted(self) -> None:
        """Count a try to connect anew."""
        self._attempts += 1

    def raise_refusal(self) -> None:
        """Raise the oldest error that no call waited for, if there is one, and forget it."""
        if self.refusals:
            raise self.refusals.popleft()

    def statistics(self) -> Statistics:
        """Return the counts up to now."""
        inboxes = self._routes.inboxes
        return Statistics(
            received=self._received,
            delivered=self._retired_delivered + sum(inbox.delivered for inbox in inboxes),
            lost_local=self._retired_discarded + sum(inbox.discarded for inbox in inboxes),
            lost_remote=self._lost_remote,
            replaced=self._replaced,
            lost_unknown=self._lost_unknown,
            unclaimed=self._unclaimed,
            refusals=self._refused,
            refusals_dropped=self._refusals_dropped,
            reconnects=self._reconnects,
            reconnect_attempts=self._attempts,
            batches_received=self._batches,
            batches_sent=self.outgoing.batches,
            batchless=self._batchless,
            unsent=self.outgoing.unsent,
        )

    # Private

    def _receive_message(self, message: Message, taker: Inbox | None) -> Message | None:
        """Queue *message*, or return it if it is for *taker* alone and nothing waits in front of it."""
        inbox = self._sole
        if inbox is None:
            self._dispatch(message)
        elif inbox is taker and inbox.is_empty:
            inbox.delivered += 1
            return message
        else:
            inbox.put(message)
        return None

    def _receive_batch(self, batch: bytes) -> None:
        """Take in the packets of a batch, in order."""
        self._batches += 1
        place, end = len(BATCH_HEAD), len(batch)
        while True:
            behind, count = measure_run(batch, place)
            if count:
                self._received += count
                self._receive_run(Run(batch, place, behind, count))
                place = behind
            else:
                packet = self._single(batch, place)
                self._receive_single(packet)
                place += LENGTH_BYTES + len(packet)
            if place >= end:
                return

    def _receive_run(self, run: Run) -> None:
        """Queue the messages of *run*; those for one inbox are left together, unless they are too little for their batch to be kept."""
        inbox = self._sole
        if inbox is not None and run.end - run.place >= len(run.batch) // 2:
            inbox.put_run(run)
            return
        for message in run.messages():
            self._receive_message(message, None)

    def _single(self, batch: bytes, place: int) -> bytes:
        """Return the packet at *place* of *batch*. Raises ProtocolError if there is none that a bus sends."""
        try:
            return next(parse_batch(batch, place))
        except ProtocolError as error:
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent a {error.words}") from error

    def _learn_features(self, features: frozenset[bytes] | None) -> None:
        """Take note of what the bus can do; None: nobody knows, and it may be asked again."""
        self.outgoing.takes_batches = features is not None and BATCH_FEATURE in features
        self._batchless += features is not None and BATCH_FEATURE not in features
        self._has_asked = features is not None

    def _learn_address(self, address: bytes) -> None:
        """Take note of the connection's own address. Raises ProtocolError if it is none."""
        parse_address(address)
        self.address = address

    def _all_inboxes(self) -> tuple[Inbox, ...]:
        """Return the inboxes of the subscriptions, and of the tap if there is one."""
        return self._routes.inboxes if self.tap_inbox is None else (*self._routes.inboxes, self.tap_inbox)

    def _dispatch(self, message: Message) -> None:
        """Queue *message* wherever a pattern matches."""
        listener = self.listener
        if listener is not None and listener.take(message):
            return
        inboxes = self._routes.find(message.key)
        if not inboxes and not (listener is not None and listener.watches(message.key)):
            self._unclaimed += 1
        for inbox in inboxes:
            inbox.put(message)

    def _receive_control(self, packet: bytes) -> None:
        """Take in a packet that is not a message."""
        # Not parse_packet(): what a tap is told is longer than the largest packet by its line.
        head, nul, payload = packet.partition(b"\0")
        if not nul or not head.startswith(b"CMSG "):
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid packet: {packet[:24]!r}…")
        key = head[5:]
        if key == controls.ERROR:
            self._receive_error(payload)
        elif key == controls.LOST:
            self._receive_lost(payload)
        elif key == controls.REPLACED:
            self._receive_replaced(payload)
        elif key == controls.PING and (token := self._ledger.passed(payload)) is not None:
            if self._unsettled and token >= self._unsettled:
                self._unsettled = 0
                self._choose_sole()
        elif key == controls.TAP and self.tap_inbox is not None:
            self.tap_inbox.put(Message(key, payload))
        elif not self._ledger.answered(key, payload):
            self._unclaimed += 1

    def _receive_error(self, payload: bytes) -> None:
        """Give an error to the call it belongs to, or keep it."""
        self._refused += 1
        refusal = RemoteRefusal(*parse_error(payload))
        self._last_words = (self._received, refusal)
        # An error that ends the connection is told by the end, which follows at once.
        if self._ledger.refused(refusal) or (refusal.code is not None and refusal.code.disconnects):
            return
        if len(self.refusals) < _KEPT_REFUSALS:
            self.refusals.append(refusal)
        else:
            self._refusals_dropped += 1

    def _receive_lost(self, payload: bytes) -> None:
        """Put a gap into every subscription, and see to it that no call waits for an answer that is lost."""
        count = _parse_count(controls.LOST, payload)
        self._lost_remote += count
        self._lost_unknown += not count
        for inbox in self._all_inboxes():
            inbox.put_gap(count)
        if self._ledger.lost():
            self._send_barrier()
        if self.listener is not None:
            self.listener.lost()

    def _receive_replaced(self, payload: bytes) -> None:
        """Say in every subscription how many messages were replaced."""
        count = _parse_count(controls.REPLACED, payload)
        self._replaced += count
        for inbox in self._all_inboxes():
            inbox.put_replaced(count)

    def _send_call(self, call: Call, *packets: bytes) -> Call:
        """Put a request and its barriers into ``outgoing``, and return its call."""
        # A ping is told the errors of what went before it, so it wants no barrier in front.
        if self.is_dirty and call.expects is not Expects.PONG:
            self._send_barrier()
        self.outgoing.put(*packets)
        self._send_barrier(call)
        return call

    def _send_barrier(self, call: Call | None = None) -> None:
        """Put a barrier into ``outgoing``."""
        self.outgoing.put(self._ledger.close_section(call))
        self.is_dirty = False

    def _send_patterns(self, inbox: Inbox) -> list[Call]:
        """Put the SUBs of *inbox* into ``outgoing``, each with its barrier."""
        for pattern in inbox.patterns:
            self.outgoing.fitting(subscribe_packet(pattern))
        return [self._send_pattern(pattern) for pattern in inbox.patterns]

    def _send_pattern(self, pattern: bytes) -> Call:
        """Put the SUB of *pattern*, and a barrier, into ``outgoing``."""
        return self._send_call(Call(f"SUB {repr(pattern)[1:]}", Expects.SILENCE, pattern), subscribe_packet(pattern))

    def _send_unsubscribe(self, *patterns: bytes) -> None:
        """Put UNSUBs into ``outgoing``; until their barrier is back, messages for them may still be under way."""
        self.outgoing.put(*map(unsubscribe_packet, patterns))
        self._send_barrier()
        self._unsettled = self._ledger.last_token
        self._choose_sole()

    def _undo(self, call: Call) -> Callable[[], None]:
        """Return what takes a SUB back once its outcome is known."""

        def undo() -> None:
            # After AnswerLost nobody knows whether the bus stored the pattern. One instance too many does no harm, one too few would:
            # another subscription may hold the same pattern.
            unknown = isinstance(call.error, AnswerLost)
            if call.error is None or (unknown and not self._routes.holds(call.key)):
                self._send_unsubscribe(call.key)

        return undo

    def _forget(self, inbox: Inbox) -> bool:
        """Let no message reach *inbox* any more, and keep its counts; return whether any could."""
        if not self._routes.discard(inbox):
            return False
        self._retired_delivered += inbox.delivered
        self._retired_discarded += inbox.discarded
        inbox.retire()
        self._choose_sole()
        return True

    def _choose_sole(self) -> None:
        """Note the inbox that every message is for: the only one there is, unless messages of an ended subscription may be under way."""
        self._sole = None if self._unsettled or self.listener is not None else self._routes.sole


def _parse_count(key: bytes, payload: bytes) -> int:
    """Return the count in a notice of the bus. Raises ProtocolError if it is none."""
    if not (payload.isdigit() and len(payload) < 20):
        raise ProtocolError(ErrorCode.EPROTO, f"the bus sent {key.decode()} with an invalid count: {payload[:24]!r}")
    return int(payload)
