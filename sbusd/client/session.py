"""What a client sends, and what a packet that it receives means. No I/O: the links in ``sync_link`` and ``aio_link`` do that.

Duties of a link:

- send the packets in ``outgoing``, in order, before anything else, and forget each when the kernel has it;
- set ``is_dirty`` when it has sent anything else;
- hand every received packet to :meth:`Session.receive`, and read nothing while ``stalled`` is not empty;
- when the connection ends, call :meth:`Session.disconnected`; on a new one :meth:`Session.resubscribe`, then :meth:`Session.reconnected`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from sbusd.client.errors import AnswerLost, NotSubscribed, PayloadTooLarge, RemoteRefusal, SbusError
from sbusd.client.inbox import Bounds, Inbox
from sbusd.client.ledger import Call, Expects, Ledger
from sbusd.client.messages import Message, Reconnected
from sbusd.client.routes import Routes
from sbusd.client.statistics import Statistics
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.limits import MAX_PACKET_BYTES
from sbusd.protocol.packets import Control, control_packet, parse_error, parse_packet, subscribe_packet, unsubscribe_packet

_KEPT_REFUSALS = 64
"""Errors kept for the next receive; the oldest are the causes, so the newest are dropped, and counted."""


class Session:
    """The state of one client: subscriptions, calls that wait, packets to send, counters. It outlives its connections."""

    def __init__(self, separator: bytes = b"/", bounds: Bounds | None = None) -> None:
        self.outgoing: deque[bytes] = deque()
        self.stalled: set[Inbox] = set()
        self.refusals: deque[RemoteRefusal] = deque()
        """Errors that no call waited for, oldest first: raise one at the next receive or ping."""
        self.is_dirty = False
        """Whether a packet that may draw an error has been sent since the last barrier."""
        self.packet_limit = MAX_PACKET_BYTES
        """Largest packet that the connection can send, bytes."""
        self._bounds = bounds or Bounds()
        self._routes = Routes(KeySpace(separator))
        self._ledger = Ledger()
        self._sole: Inbox | None = None
        self._unsettled = 0
        self._last_words: tuple[int, RemoteRefusal] | None = None
        self._received = self._lost_remote = self._unclaimed = self._refused = self._refusals_dropped = 0
        self._retired_delivered = self._retired_discarded = self._reconnects = self._attempts = 0

    # Received

    def receive(self, packet: bytes, taker: Inbox | None = None) -> Message | None:
        """Take in one packet from the bus: queue a message, or settle a call.

        A message that is for *taker* alone is returned instead of queued, if nothing waits in front of it: most are, and it saves
        a third of the work.

        Raises:
            ProtocolError: it is none that a bus sends; give up the connection.
        """
        self._received += 1
        if packet.startswith(b"MSG "):
            end = packet.find(b"\0", 4)
            if end >= 0:
                message = Message(packet[4:end], packet[end + 1 :])
                inbox = self._sole
                if inbox is None:
                    self._dispatch(message)
                elif inbox is taker and not inbox.items and not inbox.lost:
                    inbox.delivered += 1
                    return message
                else:
                    inbox.put(message)
                return None
        self._receive_control(packet)
        return None

    @property
    def last_words(self) -> RemoteRefusal | None:
        """The error that the bus sent last, if nothing came after it: why it is about to close the connection."""
        return self._last_words[1] if self._last_words and self._last_words[0] == self._received else None

    # Calls and subscriptions

    def ping(self) -> Call:
        """Put a barrier into ``outgoing``. Its call is told of an error that what was sent before drew."""
        return self._send_call(Call("ping", Expects.PONG), None)

    def control(self, key: bytes, payload: bytes | None = None) -> Call:
        """Put a control message into ``outgoing``; its call gets the answer under the same key.

        Raises:
            ProtocolError: *key* has a NUL.
            PayloadTooLarge: the connection cannot send it.
        """
        return self._send_call(Call(f"CMSG {repr(key)[1:]}", Expects.ANSWER, key), self._fitting(control_packet(key, payload)))

    def new_inbox(self, patterns: Sequence[bytes]) -> Inbox:
        """Return an inbox that no message reaches yet."""
        return Inbox(list(patterns), self._bounds, self.stalled)

    def subscribe(self, inbox: Inbox) -> list[Call]:
        """Let messages reach *inbox*, and put its SUBs into ``outgoing``, each with a barrier, so that a refusal names its pattern."""
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
                call.on_done = undo

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

    def disconnected(self, make_error: Callable[[], SbusError]) -> None:
        """Forget all that belongs to a connection that ended, and fail the calls that waited with *make_error*'s."""
        if (words := self.last_words) and self.refusals and self.refusals[-1] is words:
            self.refusals.pop()
        self.outgoing.clear()
        self.is_dirty = False
        self._unsettled = 0
        self._ledger.fail(make_error)
        self._last_words = None
        self._choose_sole()

    def resubscribe(self) -> list[Call]:
        """Put the SUBs of all subscriptions into ``outgoing`` for a new connection; the calls tell how it went."""
        return [call for inbox in self._routes.inboxes for call in self._send_patterns(inbox)]

    def reconnected(self, attempts: int, seconds: float) -> None:
        """Note in every subscription that the connection is new."""
        self._reconnects += 1
        for inbox in self._routes.inboxes:
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
            unclaimed=self._unclaimed,
            refusals=self._refused,
            refusals_dropped=self._refusals_dropped,
            reconnects=self._reconnects,
            reconnect_attempts=self._attempts,
        )

    # Private

    def _dispatch(self, message: Message) -> None:
        """Queue *message* wherever a pattern matches."""
        inboxes = self._routes.find(message.key)
        if not inboxes:
            self._unclaimed += 1
        for inbox in inboxes:
            inbox.put(message)

    def _receive_control(self, packet: bytes) -> None:
        """Take in a packet that is not a message."""
        control = parse_packet(packet)
        if not isinstance(control, Control) or control.payload is None:
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent {packet[:24]!r}…, which no bus sends to a client")
        key, payload = control.key, control.payload
        if key == controls.ERROR:
            self._receive_error(payload)
        elif key == controls.LOST:
            self._receive_lost(payload)
        elif key == controls.PING and (token := self._ledger.passed(payload)) is not None:
            if self._unsettled and token >= self._unsettled:
                self._unsettled = 0
                self._choose_sole()
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
        if not (payload.isdigit() and len(payload) < 20):
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent {controls.LOST.decode()} with {payload[:24]!r} in place of a count")
        count = int(payload)
        self._lost_remote += count
        for inbox in self._routes.inboxes:
            inbox.put_gap(count)
        if self._ledger.lost():
            self._send_barrier()

    def _send_call(self, call: Call, packet: bytes | None) -> Call:
        """Put a request and its barriers into ``outgoing``, and return its call."""
        # A ping is told the errors of what went before it, so it wants no barrier in front.
        if self.is_dirty and call.expects is not Expects.PONG:
            self._send_barrier()
        if packet is not None:
            self.outgoing.append(packet)
        self._send_barrier(call)
        return call

    def _send_barrier(self, call: Call | None = None) -> None:
        """Put a barrier into ``outgoing``."""
        self.outgoing.append(self._ledger.close_section(call))
        self.is_dirty = False

    def _send_patterns(self, inbox: Inbox) -> list[Call]:
        """Put the SUBs of *inbox* into ``outgoing``, each with its barrier."""
        packets = {pattern: self._fitting(subscribe_packet(pattern)) for pattern in inbox.patterns}
        return [self._send_call(Call(f"SUB {repr(pattern)[1:]}", Expects.SILENCE, pattern), packets[pattern]) for pattern in inbox.patterns]

    def _fitting(self, packet: bytes) -> bytes:
        """Return *packet*, if the connection can send it: in ``outgoing`` one that it cannot would stand in the way of all others."""
        if len(packet) > self.packet_limit:
            raise PayloadTooLarge(len(packet), self.packet_limit)
        return packet

    def _send_unsubscribe(self, *patterns: bytes) -> None:
        """Put UNSUBs into ``outgoing``; until their barrier is back, messages for them may still be under way."""
        self.outgoing.extend(unsubscribe_packet(pattern) for pattern in patterns)
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
        self._sole = None if self._unsettled else self._routes.sole
