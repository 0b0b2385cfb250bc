"""The contract between the switch, which moves messages, and the broker, which decides everything else.

``sbusd.dataplane.switch`` implements it. A ``MSG`` packet stays inside the switch; connects, SUB, UNSUB, CMSG, malformed packets
and ends of connections go to the :class:`Sink`.

The rules of delivery, which the tests hold the switch to:

1. The packets of one connection are handled in the order in which it sent them, and everything before a control packet has been
   handed to its recipients before the sink sees the control packet.
2. A recipient gets a packet once, however many of its patterns match, in the order in which the switch read them.
3. What a recipient's socket does not take is for its soft mode; what its queue does not take, for its hard mode. What is discarded
   is counted, and as soon as there is room the recipient is told ``CMSG !/bus/lost NUL <count>``: with ``Order.QUEUE`` in the place
   of the gap. Packets of the bus itself keep their order among themselves whatever the order of messages. What ``Order.LATEST`` replaces
   is not lost: it is counted for itself, and told by ``CMSG !/bus/replaced NUL <count>`` before messages go out again, if none of the
   bus's own packets waits.
4. A turn reads at most ``batch_packets`` from each readable connection, and from all of a user together while others can be read, so
   that neither a client nor many of one user can keep the others waiting. The compiled switch reads for ``turn_time`` at most while
   others are there, reads one whose packets are costly in smaller batches, puts back what stands behind control packets that took
   more than that, and after one that took so long serves others first; where that went into control packets or the bytes of a user
   who owns nothing here, before all connections of that user. While another user was served a moment ago, one whose packets are
   costly is not even read in between: the other is about to come again, and would wait for it. A turn that has taken four times
   ``turn_time`` goes on only with users who were not served in it: many connections of one have the bus for themselves while they are
   alone, but not for so long that it shows to who comes then. A batch that takes ten times ``turn_time`` to route, by an estimate from
   patterns, recipients and bytes, is handled in parts. For ``turn_time`` at most, or once, a turn accepts, takes down connections that
   have ended, erases their patterns, and frees what waited for them.
5. A publisher that is blocked is not read, until every recipient that blocks it has drained to its low-water mark, has ended, or has
   blocked for longer than ``block_timeout``, or for ``progress_timeout`` while its socket took nothing. In these two cases the
   recipient's mode acts as ``discard``, and no paced publisher waits for it, until its queue is at the low-water mark. A publisher
   that has hung up is read to its end all the same. A message with a secret key waits for no recipient of another user.
6. What waits is charged to the recipient's user, in bytes of the memory that it takes: :func:`waiting_bytes`. In a queue, and in all
   queues of a user together, each other user may take at most as much as it leaves free, so that no publisher can keep the next one
   out. The same rule shares ``queued_memory`` among users. What a connection that ends leaves behind may be freed over several turns,
   and its user is charged until then.
7. What is told besides costs who asked for it: a sender's name counts as a part of the packet that it stands in front of, and a tap
   is served after all recipients of a batch.
8. Of a batch each packet is handled as if it had come alone: where this says packets, a batch counts for as many as are in it, and what
   is left of one when a turn ends, or its sender is blocked, is kept, up to ``UNREAD_BYTES`` for all connections of a user: while they
   hold more, no other one of them is read.
9. To a connection that wants batches, what goes out together goes in as few packets as ``MAX_BATCH_BYTES`` allows, in the same order.
10. A peer that has closed is read to its end before the connection is taken down: what it sent is still delivered. One that has
   only shut down its sending side, shutdown(2), stays a recipient until it closes.
11. No descriptor that a peer sends is received, and none is closed on the thread that calls ``turn``, which may sleep in that: see
   ``ancillary``. Packets before one with descriptors are handled; that one and what follows is not, and its sender is disconnected.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.blocking import UserWaits, Waits
from sbusd.dataplane.connection_state import ConnectionProgress, ConnectionSettings, Queue, SwitchTotals
from sbusd.protocol.keys import KeySpace

if TYPE_CHECKING:
    from sbusd.dataplane.stalls import Stalls


class Refusal(enum.IntEnum):
    """What the switch says for itself, by packets that the sink prepared. Up to POLICY: why a MSG was not routed; the sender stays."""

    RESERVED = 0
    """EPERM: a reserved key that clients may not publish to."""
    KEY_TOO_LONG = 1
    """EMSGSIZE: the key is longer than ``key_bytes``."""
    TRUNCATED = 2
    """EMSGSIZE: the packet is longer than 409,600 bytes; the kernel cut it."""
    POLICY = 3
    """EPERM: a publish rule denies this key to the sender."""
    NO_DESCRIPTOR = 4
    """EMFILE: said to a peer that is turned away because the bus has no descriptor left; never passed to the sink."""
    QUEUE_FULL = 5
    """ENOBUFS: said to a client that asked to be ended rather than lose packets; the sink learns it as the end."""
    DESCRIPTORS = 6
    """EPROTO: said to a client that has sent descriptors, where the kernel cannot refuse them; the sink learns it as the end."""


class End(enum.IntEnum):
    """Why a connection ended."""

    HANGUP = 0
    """The peer closed it."""
    BROKEN = 1
    """Its socket failed: reset, or an error that the switch does not know."""
    DISCONNECTED = 2
    """The sink ended it."""
    QUEUE_FULL = 3
    """It could not take a packet, and its mode is ``error``."""
    DESCRIPTORS = 4
    """It has sent descriptors."""


class SoftMode(enum.IntEnum):
    """What becomes of a packet that the client's socket does not take. Spec: sbus-protocol(7) §7."""

    QUEUE = 0
    DISCARD = 1
    BLOCK = 2
    ERROR = 3


class HardMode(enum.IntEnum):
    """What becomes of a packet that the client's queue does not take. The numbers are those of :class:`SoftMode`."""

    DISCARD = 1
    BLOCK = 2
    ERROR = 3


class Order(enum.IntEnum):
    """Which of the messages that wait goes first."""

    QUEUE = 0
    """The oldest."""
    STACK = 1
    """The newest."""
    RANDOM = 2
    """The one that frees most memory, of the oldest :data:`RANDOM_PACKETS`: the largest that no other queue holds; among equals the
    oldest."""
    LATEST = 3
    """The oldest; of a client's messages with the same key only the newest waits, in the place that the key has: no key is kept waiting
    by how often others come. Messages that waited before this order was chosen stay as they are."""


class Sight(enum.IntEnum):
    """What a connection may know of those of other users; each includes what stands before it. Spec: sbus-protocol(7) §5."""

    OWN = 0
    """That they come and go."""
    PRESENCE = 1
    """Their subscriptions too, but for secret keys."""
    ALL = 2
    """Everything."""


class PublishRule(NamedTuple):
    """A rule for MSG: the first whose ``prefix`` begins the key and whose bit the sender has decides; without one it is allowed.

    Of a key at an address the key behind it, :meth:`KeySpace.inner_key`, is decided too; a message is refused if either is denied.
    """

    prefix: bytes
    is_allowed: bool


MAX_PUBLISH_RULES = 63
"""So that a sender's rules fit into one machine word, and a decision costs one instruction."""


UNREAD_BYTES = 4 << 20
"""What all connections of one user may have sent that is read and not handled yet, before no more is read: ten of the longest batches.

It is memory that no queue counts. A connection can hold as much unhandled as its own send buffer let it send before it was read."""


MISSED = 64
"""Connections that a tap is told of as having missed a message. Of more none is named: each message to many slow clients would be told
by a line as long as their number. The compiled switch has it in ``outbox.pxd``."""


RANDOM_PACKETS = 4096
"""Packets among which ``Order.RANDOM`` chooses: to look at all of a long queue for each that is sent would keep all others waiting."""


KNOWN_KEY_BYTES = 64
"""Memory of the knowledge where a key waits, with ``Order.LATEST``; charged to the recipient's user."""


ENTRY_BYTES = 26
"""Memory of a packet's place in a queue: 24 bytes, and its part of what holds those together."""


def packet_bytes(length: int) -> int:
    """Return the memory of a packet of *length* bytes that waits: with 16 of its own and 8 of the allocator, in steps of 16."""
    return (length + 39) // 16 * 16


def waiting_bytes(length: int, head: int = 0) -> int:
    """Return what a packet of *length* bytes in a queue is charged with; *head* is the length of what goes in front of it, 0 for nothing.

    A packet in several queues is charged in each: it takes that memory until the last of them has sent it.
    """
    return packet_bytes(length) + (packet_bytes(head) if head else 0) + ENTRY_BYTES


class UserCounters(NamedTuple):
    """What waits for all connections of a user now, and what was lost to them since the user's oldest one came.

    ``queued_bytes`` are the memory that it is charged with, in these and the following counters."""

    queued_packets: int
    queued_bytes: int
    lost_packets: int


class ConnectionCounters(NamedTuple):
    """What one connection has done since it was adopted; packets and bytes count whole packets."""

    received_packets: int
    """All that was read from it, control packets too."""
    received_bytes: int
    delivered_packets: int
    """All that its socket took: messages, answers, errors."""
    delivered_bytes: int
    queued_packets: int
    """Waiting now; of a connection that has ended: what waited for it then, but for its last words, and was given up."""
    queued_bytes: int
    lost_packets: int
    """Meant for it and discarded, because its queue was full or its socket could never take a packet of that size."""
    refused_packets: int
    """MSG of its own that were not routed."""
    replaced_packets: int
    """MSG that waited for it with ``Order.LATEST`` until a newer one of the same key took their place."""


class SwitchCounters(NamedTuple):
    """What the switch has done. ``deliveries == delivered + queued + lost + replaced + abandoned`` holds between turns."""

    connections: int
    accepted: int
    accept_failures: int
    """accept(2) that failed, for want of descriptors or memory; the peer was told where that was possible."""
    received_packets: int
    received_bytes: int
    messages: int
    """MSG routed."""
    undeliverable: int
    """MSG that had no recipient."""
    deliveries: int
    """Packets that were to reach a client: one for each recipient of a MSG, and one for each packet of the sink's."""
    delivered_packets: int
    delivered_bytes: int
    queued_packets: int
    queued_bytes: int
    lost_packets: int
    abandoned_packets: int
    """Still waiting for a connection when it ended."""
    refused_packets: int
    subscriptions: int
    cache_hits: int
    cache_misses: int
    turns: int
    received_batches: int
    """What came several in one; the packets in them are among the received ones, they themselves are not."""
    delivered_batches: int
    """What went out several in one."""
    batched_packets: int
    """How many packets those were."""
    blocks: int
    """Times that a publisher began to wait for a recipient."""
    fallbacks: int
    """Times that a recipient's mode fell back to ``discard``, because it had blocked publishers for too long."""
    replaced_packets: int
    """MSG that waited until a newer one of the same key took their place: ``Order.LATEST``."""


class Sink(Protocol):
    """The control plane as the switch sees it. Called from :meth:`Switch.turn` alone; it may call the switch back, but not ``turn``."""

    def connected(self, connection: int, fd: int) -> None:
        """Take note of a new connection; *fd* stays the switch's. End it here with :meth:`Switch.disconnect` to refuse it."""

    def control(self, connection: int, packet: bytes) -> None:
        """Handle a packet that is not a well-formed MSG: SUB, UNSUB, CMSG, or malformed."""

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        """Take note that *count* MSG, of which *key* is the first's, were not routed: once for each reason and turn, for the record."""

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        """Return whether the connection may know who gets a MSG with *key*, a secret one that it may publish to.

        Asked before a MSG with a receipt is routed to such a key, when everything before that has been handed to its recipients, and not
        for other keys.
        """

    def lost(self, connection: int, count: int) -> None:
        """Take note that *count* packets for it were discarded; called when it is told, or will not be any more because it has ended, for
        the record."""

    def accept_failed(self, errno: int) -> None:
        """Take note that accept(2) failed with *errno*: the bus has run out of descriptors or memory."""

    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None:
        """Forget a connection. The switch has dropped its subscriptions; its number is never used again. ``closed`` follows."""

    def closed(self, connection: int) -> None:
        """Take note that a connection that has ended costs nothing more: its socket is closed, and its patterns are erased.

        Called right after ``ended``, unless that takes long: a thread closes a socket that has descriptors among its unread packets, and
        many patterns are erased over several turns.
        """


class Switch(Protocol):
    """The data plane. Not thread-safe: everything is called from the thread that calls ``turn``, between turns or from the sink."""

    @property
    def kind(self) -> str:
        """The name of the switch in ``!/bus/stats``: ``compiled``."""

    def listen(self, fd: int) -> None:
        """Accept connections from the listening SEQPACKET socket *fd*, which stays the caller's."""

    def measure(self, stalls: Stalls) -> None:
        """Let *stalls* measure the time between two waits for readiness from now on."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call *callback* in each turn in which *fd*, which stays the caller's, is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop watching *fd*; before it is closed."""

    def adopt(self, fd: int, connection: int) -> None:
        """Take over the connected socket *fd* as number *connection*, which must be new. The sink is not told."""

    def turn(self, timeout_ms: int) -> int:
        """Wait for readiness, at most *timeout_ms* (-1: for ever), handle what is ready, and return how many descriptors were.

        Returns at least 1 while connections that have ended are still to be taken down: the next turn does not wait.
        May return early, with 0, when a signal has arrived; only a watched descriptor is sure to end the wait.
        """

    def take_down(self) -> None:
        """Take down all connections that have ended, for as long as it takes: before a handover, which is about the living."""

    def run(self, timeout_ms: int) -> None:
        """Take turns for *timeout_ms* (-1: for ever; 0: one turn).

        Returns after the turn in which the callback of a watched descriptor was called, a signal has arrived, or the sink has called
        :meth:`return_soon`; may do so after any turn.
        """

    def return_soon(self) -> None:
        """Let :meth:`run` return after this turn: there is something to do between turns.

        Called between turns, it holds for the next call of :meth:`run` or :meth:`turn`: :meth:`run` then takes one turn, which does not
        wait. It ends no turn early: whatever is ready has its part of the turn first, by rule 4. Therefore it keeps no message waiting,
        however often it is called; for how long the work between turns may take is the caller's matter.
        """

    def subscribe(self, connection: int, pattern: bytes) -> None:
        """Store one more instance of *pattern*, any bytes without NUL; whether it is allowed is the sink's matter."""

    def unsubscribe(self, connection: int, pattern: bytes) -> bool:
        """Remove one instance of *pattern* and return True, or return False if there is none."""

    def instances(self, connection: int, pattern: bytes) -> int:
        """Return how many instances of *pattern* the connection has stored."""

    def send(self, connection: int, packet: bytes) -> None:
        """Hand *packet* to the connection, behind all that waits for it, under the same bounds."""

    def announce(self, packet: bytes, *, sight: Sight, uid: int, cred: bytes = b"") -> None:
        """Hand *packet*, a MSG of the bus itself, to each connection with a pattern that takes its key, which may be a reserved one, and
        that may know of it: that has at least *sight*, or is of *uid*. As :meth:`send` does, in order of their numbers, but where it has
        to wait it counts as published by *uid*, who has caused it. *cred* names the bus itself to those who want senders."""

    def set_sender(self, connection: int, on: bool) -> None:
        """Set whether each MSG comes to the connection as ``CMSG !/from/<id>/<cred> NUL <the MSG packet>``, with the number and name of
        who sent it, 0 for the bus itself; False at first. For what is routed from now on; it counts with its whole length."""

    def set_batch(self, connection: int, on: bool) -> None:
        """Set whether several packets may come to the connection in one, as ``CMSG !/batch``; False at first."""

    def set_pace(self, connection: int, on: bool) -> None:
        """Set whether messages of the connection wait for recipients of any user, instead of being discarded for them; False at first.

        Rules 5 and 6 hold. Recipients of one other user hold it up for at most ``pace_limit`` of each second in total.
        """

    def set_tap(self, connection: int, pattern: bytes | None) -> None:
        """Let the connection be told of each MSG that *pattern* takes, reserved keys included, or with None of none; None at first.

        ``CMSG !/tap NUL {...} LF <the MSG packet>``, behind what goes to the recipients, under the same modes, but that it blocks nobody.
        ``missed`` in the line are the connections with a matching pattern that are not recipients: the packet was discarded for them,
        they are ending, or they sent it and want no echo. In order of their numbers; empty if they are more than :data:`MISSED`.
        It is no recipient: it counts in no receipt, and not in ``undeliverable``.
        """

    def is_tapped(self) -> bool:
        """Return whether any connection has a tap."""

    def report(self, key: bytes, packet: bytes, *, uid: int) -> None:
        """Hand *packet* to each connection with a tap whose pattern takes *key*, as :meth:`announce` does. *uid* has caused it."""

    def set_echo(self, connection: int, on: bool) -> None:
        """Set whether the connection gets the MSG of its own that it has subscribed to; True at first."""

    def arm_receipt(self, connection: int, token: bytes, *, always: bool) -> None:
        """Tell the connection what becomes of its next MSG, with *token*, any bytes: once, at the place of that MSG among its packets.

        ``CMSG !/bus/receipt NUL <token> NUL <recipients>``: the connections that it was handed to or waits for, 0 if it was refused;
        for a sender with less than ``Sight.ALL`` also connections of other users that lost it, for a full queue is its owner's secret.
        Without *always* nothing is sent where there are recipients. Where the connection may not know them,
        :meth:`Sink.may_know_recipients`, ``<recipients>`` is ``-``, with or without *always*, and whether there are any or not.
        What was armed before is forgotten.
        """

    def set_party(
        self, connection: int, uid: int, *, blocks_others: bool = False, rules: int = 0, sight: Sight = Sight.OWN, cred: bytes = b""
    ) -> None:
        """Say whose a connection is: *uid* is charged for what waits for it; it may block publishers of other users if *blocks_others*;
        bit i of *rules* says that publish rule i is about it; *sight* is what it may know of others; *cred* is what names it as a sender,
        of letters, digits, ``!`` and ``/``. Until then it is nobody's: charged to none, blocking none, without a name."""

    def set_user_limits(self, uid: int, packets: int, size: int) -> None:
        """Bound what may wait for all connections of *uid* together, in packets and bytes of memory; the user must have a connection."""

    def set_publish_rules(self, rules: tuple[PublishRule, ...]) -> None:
        """Set the rules for MSG, at most :data:`MAX_PUBLISH_RULES`; the masks of :meth:`set_party` mean these from now on."""

    def set_soft(self, connection: int, mode: SoftMode) -> None:
        """Set what becomes of packets that the socket does not take; ``QUEUE`` at first."""

    def set_hard(self, connection: int, mode: HardMode) -> None:
        """Set what becomes of packets that the queue does not take; ``DISCARD`` at first."""

    def set_order(self, connection: int, order: Order) -> None:
        """Set the order of messages that wait; ``QUEUE`` at first."""

    def user_counters(self, uid: int) -> UserCounters:
        """Return the counters of a user, zeros if it has no connection."""

    def user_waits(self, uid: int) -> UserWaits:
        """Return for how long a user's publishers were blocked and its recipients blocked publishers, zeros if it has no connection."""

    def blockers(self, most: int) -> list[int]:
        """Return up to *most* connections that publishers wait for now."""

    def waits(self, connection: int) -> Waits:
        """Return whom a connection waits for, and who waits for it. Raises KeyError if the connection does not exist."""

    def disconnect(self, connection: int, last_words: bytes = b"") -> None:
        """End a connection: offer its socket *last_words*, in front of nothing that waits, and close. ``ended`` follows in this turn."""

    def connections(self) -> list[int]:
        """Return the numbers of all connections, oldest first."""

    def patterns(self, connection: int) -> dict[bytes, int]:
        """Return the connection's patterns, each with how many instances are stored."""

    def patterns_after(self, connection: int, after: bytes | None, most: int) -> list[bytes]:
        """Return up to *most* of the connection's patterns behind *after* in the order of their bytes; None: the first."""

    def recipients(self, key: bytes) -> list[int]:
        """Return the connections that a MSG with *key* from another one would reach now, in order of their numbers.

        Those that have ended in this turn are among them until the sink is told, so that what it says agrees with what it has heard.
        """

    def connection_counters(self, connection: int) -> ConnectionCounters:
        """Return the counters of one connection. Raises KeyError if there is no such connection."""

    def counters(self) -> SwitchCounters:
        """Return the counters of the switch."""

    def settings(self, connection: int) -> ConnectionSettings:
        """Return what the connection has asked for itself."""

    def progress(self, connection: int) -> ConnectionProgress:
        """Return what the connection has done; together with what waits for it, :meth:`queues`, it is all of it."""

    def queues(self) -> tuple[list[bytes], dict[int, Queue]]:
        """Return the packets that wait, each once, and what of them waits for whom; who has nothing waiting is left out."""

    def tally(self) -> SwitchTotals:
        """Return what the switch has done."""

    def next_connection(self) -> int:
        """Return the number that the next connection will get."""

    def restore(self, connection: int, settings: ConnectionSettings, progress: ConnectionProgress) -> None:
        """Let an adopted connection go on where it was. Those that it blocks must be there when :meth:`restore_all` is called."""

    def restore_all(self, packets: list[bytes], queues: dict[int, Queue], totals: SwitchTotals, next_connection: int) -> None:
        """Let the switch go on where another was: after every connection is adopted, has its party, and is restored.

        What waits is sent from the next turn on, not before. Numbers of connections begin at *next_connection* at least.
        """

    def closing(self) -> list[int]:
        """Return the descriptors of connections that have ended and are not closed yet."""

    def close(self, *, keeps_connections: bool = False) -> None:
        """Close every connection without telling the sink, and the switch's own descriptors. Nothing may be called after.

        With *keeps_connections* only this process's descriptors are closed: for peers nothing ends while others hold duplicates.
        """


MakeSwitch = Callable[[Sink, KeySpace, LimitSettings, tuple[bytes, ...]], Switch]
"""How a switch is made: with its sink, the rules for keys, its bounds, and the packet that a sender is told for each
:class:`Refusal`, by its number."""
