"""The contract between the switch, which moves messages, and the broker, which decides everything else.

``sbusd.dataplane.switch`` implements it. A ``MSG`` packet stays inside the switch. Connections that begin or end, SUB, UNSUB, CMSG, and
malformed packets go to the :class:`Sink`.

The rules of delivery, which the tests check:

1. The packets of a connection are handled in the order in which it sent them. Everything before a control packet is delivered before the
   sink gets the control packet.
2. A recipient gets a packet once, however many of its patterns match, in the order in which the switch read the packets.
3. The soft mode decides on packets that a recipient's socket does not take, and the hard mode on those that its queue does not take.
   Discarded packets are counted, and as soon as there is room the recipient gets the loss notice ``CMSG !/bus/lost NUL <count>``: with
   ``Order.QUEUE`` where packets are missing, with ``Order.FAIR`` at that place among the messages of the publisher's user. Packets of
   the bus itself keep their order among themselves, whatever the order of messages.
   Messages that ``Order.LATEST`` replaces are not lost: they are counted separately, and reported by ``CMSG !/bus/replaced NUL <count>``
   before the next messages, if the queue has no packet of the bus itself.
4. A turn reads at most ``batch_packets`` from each readable connection, and from all connections of a user together while other users can
   be read. So neither a client nor the many connections of a user delay the others. The compiled switch also shares out time:

   - While other users are there, it reads a connection for at most ``turn_time``. It reads a connection whose packets are costly in
     smaller batches, and puts back the packets after control packets that took longer than ``turn_time``.
   - After such a connection it serves others first. If control packets or the bytes of a user who owns nothing here took the time, other
     users go before all connections of that user. Such times of all, also closed, connections add up, if above a fifth of all time.
   - While another user was served a moment ago, it does not read a connection whose packets are costly even in between, nor any connection
     of a user that took too long: the other user will soon be back, and would have to wait.
   - After four times ``turn_time`` a turn goes on only with users that it has not served yet. Many connections of one user may use the
     bus alone, but not for so long that a newcomer notices.
   - A batch that takes ten times ``turn_time`` to route is handled in parts; the time is estimated from patterns, recipients and bytes.
   - For ``turn_time`` at most, or once, a turn accepts connections, takes down those that have ended, erases their patterns, and frees
     their queues.
5. A blocked publisher is not read until each recipient that blocks it has drained to its low-water mark, has ended, or has blocked for
   longer than ``block_timeout``, or for ``progress_timeout`` while its socket took nothing. After these two timeouts the recipient's mode
   acts as ``discard``, and no paced publisher waits for it, until its queue is at the low-water mark. A publisher that has hung up is read
   to its end. A message with a private key waits for no recipient of another user.
6. A queue is charged to the recipient's user, in bytes of the memory that it takes: :func:`waiting_bytes`. In a queue, and in all queues
   of a user together, each other user may take at most as much as it leaves free, so that no publisher can keep out the next one. The
   same rule shares ``queued_memory`` among users. The queue of a connection that ends may be freed over several turns, and its user is
   charged until then.
7. Additions are charged to the client that asked for them: the head with the sender's name counts as a part of its packet, and taps are
   served after all recipients of a batch.
8. Each packet in a batch is handled as if it had come alone. Where these rules say packets, a batch counts as the packets in it. The
   rest of a batch is kept when a turn ends or its sender is blocked, up to ``UNREAD_BYTES`` for all connections of a user. While they
   hold more, none of the user's other connections is read.
9. A connection that wants batches gets packets that are sent together in as few batches as ``MAX_BATCH_BYTES`` allows, in the same order.
10. A connection whose peer has closed is read to its end before it is taken down, so that everything it sent is delivered. A peer that
    has only shut down its sending side, shutdown(2), stays a recipient until it closes.
11. The switch receives no descriptor that a peer sends, and closes none on the thread that calls ``turn``, because that may block: see
    ``ancillary``. Packets before one with descriptors are handled. That one and all after it are not, and its sender is disconnected.
12. From a connection that may vouch, ``CMSG !/from/<origin> NUL <the MSG packet>`` is handled as the MSG packet in it. Recipients that
    want senders get it with ``!/from/<id>/<cred>/<origin>``, and taps get the origin as ``vouched``. ``sbus.protocol.vouching`` says which
    packets are well-formed. The sink gets all others, and those of connections that may not vouch.
13. A stored pattern with a NUL is that of a member of a group: the pattern, NUL, and the group's name. A group belongs to one user. Of its
    members with a matching pattern one gets a MSG, as ``CMSG !/group/<name> NUL <the packet>``, besides the recipients by other patterns:
    the one whose queue would take it and that has the least to read, in its queue and in its socket; among equals the one that got none
    for longest. Messages in the queue of a member that ends go to other members, to the end of their queues, and count as redelivered.
14. On a socket of type SOCK_STREAM each packet is a frame: its length (32 bits, little endian), and the packet. All rules apply to the
    packets in the frames. Nothing after a frame of length 0 or above the longest packet is handled, and the sender is disconnected after
    the packets before it. A packet whose frame the socket has taken in part counts as queued, and its rest is sent before anything else.
    A turn sends a limited number of bytes of long frames and of queues; the rest follows in later turns, see sbus-protocol(7) §1.
    Rule 9 does not apply: frames that are sent together need one system call anyway. The memory for frames that are received in part is
    at most ``UNREAD_BYTES`` for all connections of a user, and 4 KiB for each of them in addition.
15. From a connection that may deliver, ``CMSG !/to/<id> NUL <the MSG packet>`` is handled as the MSG packet in it, but only the connection
    with that number can be a recipient: if one of its patterns matches, or else a membership, then as a member of the first such group
    by name. In place of the MSG packet there can be one of rule 12. Taps get the number as ``to``. ``sbus.protocol.direct_messages``
    says which packets are well-formed. The sink gets all others, and those of connections that may not deliver.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from sbusd.dataplane.counters import ConnectionCounters, SwitchCounters, UserCounters, UserTraffic, UserWaits, Waits
from sbusd.dataplane.switch_state import ConnectionProgress, ConnectionSettings, Queue, SwitchTotals


class Refusal(enum.IntEnum):
    """What the switch reports to clients itself, with packets that the sink has prepared. Up to POLICY: why a MSG was not routed; NUL and
    the first :data:`REFUSED_KEY_BYTES` of its key follow, and the sender stays connected."""

    RESERVED = 0
    """EPERM: a reserved key that clients may not publish to."""
    KEY_TOO_LONG = 1
    """EMSGSIZE: the key is longer than ``key_bytes``."""
    TRUNCATED = 2
    """EMSGSIZE: the packet is longer than 409,600 bytes; the kernel has truncated it."""
    POLICY = 3
    """EPERM: a publish rule denies this key to the sender."""
    NO_DESCRIPTOR = 4
    """EMFILE: the bus has no descriptor left for this peer. The sink does not get this one."""
    QUEUE_FULL = 5
    """ENOBUFS: the client asked to be disconnected rather than lose packets. The sink gets it as the end."""
    DESCRIPTORS = 6
    """EPROTO: the client has sent descriptors, and this kernel cannot refuse them. The sink gets it as the end."""
    FRAME = 7
    """EPROTO: the stream of the client has a frame of a length that no packet has, or ends within a frame. The sink gets it as the end."""


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
    FRAME = 5
    """Its stream has a frame of a length that no packet has, or ends within a frame."""


class SoftMode(enum.IntEnum):
    """What happens to a packet that the client's socket does not take. Spec: sbus-protocol(7) §7."""

    QUEUE = 0
    DISCARD = 1
    BLOCK = 2
    ERROR = 3


class HardMode(enum.IntEnum):
    """What happens to a packet that the client's queue does not take. The numbers are those of :class:`SoftMode`."""

    DISCARD = 1
    BLOCK = 2
    ERROR = 3


class Order(enum.IntEnum):
    """Which message of a queue goes first."""

    QUEUE = 0
    """The oldest."""
    STACK = 1
    """The newest."""
    RANDOM = 2
    """Of the oldest :data:`RANDOM_PACKETS` the one that frees most memory: the largest that no other queue holds; among equals the
    oldest."""
    LATEST = 3
    """The oldest. Of messages with the same key the queue keeps only the newest, at the position of the first: frequent updates do not
    delay a key. Messages that were in the queue before this order was chosen stay as they are."""
    FAIR = 4
    """The oldest of the user whose turn it is: publishers' users take turns, one message each. The first :data:`FAIR_PACKETS` of
    the queue have had their turns. Such a connection gets no batches."""


MODES: dict[bytes, SoftMode | HardMode | Order] = {
    **{b"blocking/soft/" + mode.name.lower().encode(): mode for mode in SoftMode},
    **{b"blocking/hard/" + mode.name.lower().encode(): mode for mode in HardMode},
    **{b"order/" + order.name.lower().encode(): order for order in Order},
}
"""The mode that each of these control messages chooses. Spec: sbus-protocol(7) §6 and §7."""


class Sight(enum.IntEnum):
    """What a connection may know about those of other users; each value includes the ones before it. Spec: sbus-protocol(7) §5."""

    OWN = 0
    """That they begin and end."""
    PRESENCE = 1
    """Their subscriptions too, except to private keys."""
    ALL = 2
    """Everything."""


class PublishRule(NamedTuple):
    """A rule for MSG. The first rule whose ``prefix`` begins the key and whose bit the sender has decides; without one it is allowed.

    For a key at an address, the key after the address, :meth:`KeySpace.inner_key`, is decided too. A message needs both.
    """

    prefix: bytes
    is_allowed: bool
    refusal: bytes = b""
    """The error for a message that the rule denies, to which its key is added; empty: that of ``Refusal.POLICY``."""


REFUSED_KEY_BYTES = 1_024
"""Maximum length of the key in an error: a sender should recognize it, and no error should be much longer than the message."""

MAX_PUBLISH_RULES = 63
"""So that a sender's rules fit into one machine word, and a decision takes one instruction."""

UNREAD_BYTES = 4 << 20
"""What all connections of one user may have sent that is read and not handled, before they are not read any more: ten of the longest
batches.

No queue counts this memory. One read takes at most a megabyte, so the last one exceeds this by one packet at most."""

MAX_GROUPS = 16
"""Groups of one connection. A publisher looks at each member that a message matches, whichever user it belongs to."""

MAX_USER_GROUPS = 256
"""Groups of one user: as many as it has connections by default, so that a message gets no more recipients by groups than without."""

MAX_LISTED_RECIPIENTS = 64
"""Recipients that a receipt lists. A caller that wants to know more of them asks for the members."""

MISSED = 64
"""Connections in a tap's report that missed a message. If there are more, none is named: otherwise the reports of messages to many slow
clients would be as long as the number of these. The compiled switch has it in ``outbox.pxd``."""

FAIR_PACKETS = 64
"""With ``Order.FAIR``: messages that have left their lines and are the next to be sent. The compiled switch has it in ``outbox.pxd``."""

RANDOM_PACKETS = 512
"""Packets among which ``Order.RANDOM`` chooses. To look at all of a long queue for each packet would delay all other clients."""

KNOWN_KEY_BYTES = 64
"""Memory for the place of a key in a queue, with ``Order.LATEST``; charged to the recipient's user."""

ENTRY_BYTES = 26
"""Memory for a packet's place in a queue: 24 bytes, and its part of what holds these together."""


def packet_bytes(length: int) -> int:
    """Return the memory of a packet of *length* bytes in a queue: with 16 of its own and 8 of the allocator, in steps of 16."""
    return (length + 39) // 16 * 16


def waiting_bytes(length: int, head: int = 0) -> int:
    """Return what a packet of *length* bytes in a queue is charged with; *head* is the length of its head, 0 for none.

    A packet in several queues is charged in each: it takes that memory until the last of them has sent it.
    """
    return packet_bytes(length) + (packet_bytes(head) if head else 0) + ENTRY_BYTES


class Reports(Protocol):
    """What the switch reports about messages. Called only from :meth:`Switch.turn`. It may call the switch, but not ``turn``."""

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        """Record that *count* MSG were not routed, the first of them with *key*: once for each reason and turn."""

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        """Return whether the connection may know the recipients of a MSG with *key*, a secret one that it may publish to.

        Called before a MSG with a receipt is routed to such a key, when everything before it is delivered, and not for other keys.
        """

    def lost(self, connection: int, count: int) -> None:
        """Record that *count* packets for it were discarded: when it is sent the loss notice, or when it has ended without one."""

    def accept_failed(self, errno: int) -> None:
        """Record that accept(2) failed with *errno*: the bus has run out of descriptors or memory."""


class Sink(Reports, Protocol):
    """The control plane as the switch sees it, under the same conditions as `Reports`."""

    def connected(self, connection: int, fd: int) -> None:
        """Handle a new connection; *fd* stays the switch's. To refuse the connection, call :meth:`Switch.disconnect` here."""

    def control(self, connection: int, packet: bytes) -> None:
        """Handle a packet that is not a well-formed MSG: SUB, UNSUB, CMSG, or malformed."""

    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None:
        """Forget a connection. The switch has dropped its subscriptions, and never uses its number again. ``closed`` follows."""

    def closed(self, connection: int) -> None:
        """Release what a connection that has ended was charged with: its socket is closed, and its patterns are erased.

        Called right after ``ended``, unless that takes long: a thread closes a socket that has descriptors among its unread packets, and
        many patterns are erased over several turns.
        """


class Switch(Protocol):
    """The data plane. Not thread-safe: all calls come from the thread that calls ``turn``, between turns or from the sink."""

    @property
    def kind(self) -> str:
        """The name of the switch in ``!/bus/stats``: ``compiled``."""

    def listen(self, fd: int) -> None:
        """Accept connections from the listening socket *fd*, SEQPACKET or STREAM, which stays the caller's."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call *callback* in each turn in which *fd*, which stays the caller's, is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop watching *fd*; before it is closed."""

    def adopt(self, fd: int, connection: int) -> None:
        """Take over the connected socket *fd* as number *connection*, which must be new. The sink gets no call."""

    def turn(self, timeout_ms: int) -> int:
        """Wait for readiness, at most *timeout_ms* (-1: forever), handle what is ready, and return how many descriptors were.

        Returns at least 1 while connections that have ended are still to be taken down: the next turn does not wait.
        May return early, with 0, when a signal has arrived. Only a watched descriptor is certain to end the wait.
        """

    def take_down(self) -> None:
        """Take down all connections that have ended, however long it takes: before a handover, which only takes live ones."""

    def run(self, timeout_ms: int) -> None:
        """Take turns for *timeout_ms* (-1: forever; 0: one turn).

        Returns after the turn in which the callback of a watched descriptor was called, a signal has arrived, or the sink has called
        :meth:`return_soon`; may return after any turn.
        """

    def return_soon(self) -> None:
        """Let :meth:`run` return after this turn, because there is work to do between turns.

        Called between turns, it applies to the next call of :meth:`run` or :meth:`turn`: :meth:`run` then takes one turn, which does not
        wait. It ends no turn early: everything that is ready has its part of the turn first, by rule 4. So it delays no message, however
        often it is called. The caller decides how long the work between turns may take.
        """

    def subscribe(self, connection: int, pattern: bytes) -> None:
        """Store one more instance of *pattern*, any bytes without NUL, or the stored pattern of a member: rule 13. The user must be set.

        The sink decides whether that is allowed.
        """

    def may_join(self, connection: int, group: bytes) -> bool:
        """Return whether the connection may be a member of *group*: it is one, or there are fewer than :data:`MAX_GROUPS` and
        :data:`MAX_USER_GROUPS`."""

    def unsubscribe(self, connection: int, pattern: bytes) -> bool:
        """Remove one instance of *pattern* and return True, or return False if there is none."""

    def instances(self, connection: int, pattern: bytes) -> int:
        """Return how many instances of *pattern* the connection has stored."""

    def send(self, connection: int, packet: bytes) -> None:
        """Send *packet* to the connection, after everything in its queue and with the same limits."""

    def announce(self, packet: bytes, *, sight: Sight, uid: int, payer: int, cred: bytes = b"") -> None:
        """Send *packet*, a MSG of the bus itself, to each connection with a pattern that matches its key, which may be a reserved one, and
        that may know of it: it has at least *sight*, or belongs to *uid*. The order is that of the connections' numbers.

        As with :meth:`send`, but in a queue *payer* is charged for it, as for what *uid* publishes, and with the order ``FAIR`` it has the
        turn of *payer*. *cred* names the bus itself to recipients that want senders.
        """

    def report_loss(self, patterns: list[bytes], count: int, *, uid: int) -> int:
        """Send ``CMSG !/bus/lost NUL <count>`` to each connection that has stored one of *patterns*, once, and return their number.

        As with :meth:`announce`, *uid* has caused it. If a queue has no room for the notice, *count*, or 1 for 0, is added to what the
        connection has lost: the next loss notice includes it.
        """

    def set_tap(self, connection: int, pattern: bytes | None) -> None:
        """Report each MSG that *pattern* matches, also with reserved keys, to the connection; None: no MSG, as at first.

        ``CMSG !/tap NUL {...} LF <the MSG packet>``, after the recipients have got it, and with the same modes, except that a tap blocks
        no publisher. ``missed`` in the line are the connections with a matching pattern that are not recipients: the packet was discarded
        for them, they are ending, or they sent it and want no echo. They are in order of their numbers; if they are more than
        :data:`MISSED`, none is named. A tap is not a recipient: it counts neither in receipts nor in ``undeliverable``.
        """

    def is_tapped(self) -> bool:
        """Return whether any connection has a tap."""

    def report(self, key: bytes, packet: bytes, *, uid: int) -> None:
        """Send *packet* to each connection with a tap whose pattern matches *key*, as :meth:`announce` does. *uid* has caused it."""

    def configure(self, connection: int, settings: ConnectionSettings) -> None:
        """Set what the connection has asked for itself, from the next packet on. Messages in its queue stay as they are."""

    def arm_receipt(self, connection: int, token: bytes, *, always: bool, lists: bool = False) -> None:
        """Send the connection a receipt for its next MSG, with *token*, any bytes: once, at the place of that MSG among its packets.

        ``CMSG !/bus/receipt NUL <token> NUL <recipients>``: the connections that got it or have it in their queues, 0 if it was refused.
        For a sender with less than ``Sight.ALL`` connections of other users that lost it count too, because a full queue is its owner's
        secret. Without *always* no receipt is sent if there are recipients. If the connection may not know them,
        :meth:`Sink.may_know_recipients`, ``<recipients>`` is ``-``, with or without *always*, and whether there are any or not.
        With *lists*, ``NUL <connection>,<connection>…`` follows the number: the connections that the message was routed to, in ascending
        order, unless there are none or more than :data:`MAX_LISTED_RECIPIENTS`.
        A receipt that was armed before is dropped.
        """

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
        """Set the user of a connection, *uid*. *charged*, which is *uid* by default, is the user that is charged for its queue and its
        messages, and that has the limits and turns of all connections for which it is charged; the rights are those of *uid*.
        *blocks_others*: it may block publishers of other users. Bit i of *rules*: publish rule i applies to it. *sight*: what it may know
        about others. *cred*, of letters, digits, ``!`` and ``/``, names it as a sender. *may_vouch*: rule 12. *may_deliver*: rule 15.
        Until then it has no user and no name: no user is charged, and it blocks no publisher."""

    def set_user_limits(self, uid: int, packets: int, size: int) -> None:
        """Limit the queues of all connections of *uid* together, in packets and bytes of memory; the user must have a connection."""

    def set_publish_rules(self, rules: tuple[PublishRule, ...]) -> None:
        """Set the rules for MSG, at most :data:`MAX_PUBLISH_RULES`. From now on the masks of :meth:`set_party` refer to these."""

    def user_counters(self, uid: int) -> UserCounters:
        """Return the counters of a user, zeros if it has no connection."""

    def user_waits(self, uid: int) -> UserWaits:
        """Return for how long a user's publishers were blocked and its recipients blocked publishers, zeros if it has no connection."""

    def traffic_of(self, connections: Iterable[int]) -> UserTraffic:
        """Return what *connections* have done together until now; those that do not exist have done nothing."""

    def traffic(self, uids: Sequence[int]) -> tuple[dict[int, UserTraffic], UserTraffic]:
        """Return what the connections of each of *uids* have done until now, and those of all other users together."""

    def blockers(self, most: int) -> list[int]:
        """Return up to *most* connections for which publishers wait now."""

    def waits(self, connection: int) -> Waits:
        """Return the recipients for which a connection waits, and the publishers that wait for it. Raises KeyError if it does not exist."""

    def disconnect(self, connection: int, last_words: bytes = b"") -> None:
        """End a connection: offer its socket *last_words*, but nothing of its queue, and close. ``ended`` follows in this turn."""

    def connections(self) -> list[int]:
        """Return the numbers of all connections, oldest first."""

    def patterns(self, connection: int) -> dict[bytes, int]:
        """Return the connection's patterns, each with its number of instances."""

    def patterns_after(self, connection: int, after: bytes | None, most: int) -> list[bytes]:
        """Return up to *most* of the connection's patterns after *after* in the order of their bytes; None: the first."""

    def recipients(self, key: bytes) -> list[int]:
        """Return the connections that a MSG with *key* from another one would reach now, in order of their numbers, each member of a group
        included that it could reach.

        Connections that have ended in this turn are included until the sink knows, so that both agree.
        """

    def connection_counters(self, connection: int) -> ConnectionCounters:
        """Return the counters of one connection. Raises KeyError if there is no such connection."""

    def counters(self) -> SwitchCounters:
        """Return the counters of the switch."""

    def settings(self, connection: int) -> ConnectionSettings:
        """Return what the connection has asked for itself."""

    def progress(self, connection: int) -> ConnectionProgress:
        """Return the progress of the connection. Together with its queue, :meth:`queues`, it is its whole state."""

    def queues(self) -> tuple[list[bytes], dict[int, Queue]]:
        """Return the packets in all queues, each once, and the queues by connection, without empty ones."""

    def tally(self) -> SwitchTotals:
        """Return the totals of the switch."""

    def next_connection(self) -> int:
        """Return the number that the next connection will get."""

    def restore(self, connection: int, settings: ConnectionSettings, progress: ConnectionProgress) -> None:
        """Set the settings and the progress of an adopted connection. Publishers that it blocks must be there at :meth:`restore_all`."""

    def restore_all(self, packets: list[bytes], queues: dict[int, Queue], totals: SwitchTotals, next_connection: int) -> None:
        """Set the rest of another switch's state, after every connection is adopted, has its party, and is restored.

        Queues are sent from the next turn on, not before. Numbers of new connections begin at *next_connection* at least.
        """

    def charge_closes(self, charged: Callable[[int], int]) -> None:
        """Set who is charged for sockets that wait to be closed: *charged* returns that user for a uid, which is the default."""

    def closing(self) -> list[int]:
        """Return the descriptors of connections that have ended and are not closed yet."""

    def close(self, *, keeps_connections: bool = False) -> None:
        """Close every connection without calls of the sink, and the switch's own descriptors. No other call may follow.

        With *keeps_connections* only this process's descriptors are closed: peers do not notice while other processes hold duplicates.
        """
