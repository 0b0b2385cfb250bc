"""The plain switch: the contract in the words of Python, one packet and one system call at a time.

It is what the compiled switch is tested against, and is used only when it is asked for by name. It is written to be read: it
matches by trying every pattern, and copies every packet.

Longer than 500 lines, for one reason: it is one class with one contract, and is read beside the compiled one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields

from sbusd.config.settings import LimitSettings
from sbusd.dataplane import ancillary
from sbusd.dataplane.blocking import NAMED_WAITS, UserWaits, Wait, Waits
from sbusd.dataplane.closer import Closer
from sbusd.dataplane.connection_state import ConnectionProgress, ConnectionSettings, Queue, QueueEntry, SwitchTotals
from sbusd.dataplane.contract import (
    MAX_PUBLISH_RULES,
    MISSED,
    UNREAD_BYTES,
    ConnectionCounters,
    End,
    HardMode,
    Order,
    PublishRule,
    Refusal,
    Sight,
    Sink,
    SoftMode,
    SwitchCounters,
    UserCounters,
)
from sbusd.dataplane.reference_outbox import Entry, Outbox, Packet
from sbusd.dataplane.reference_pacing import PACED_BYTES, Hold, Stopwatch
from sbusd.dataplane.reference_rooms import Account, Pool
from sbusd.dataplane.stalls import Stalls
from sbusd.protocol.batches import BATCH_HEAD, LENGTH_BYTES, parse_batch
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.keys import SECRET_HEAD, KeySpace
from sbusd.protocol.limits import MAX_BATCH_BYTES, MAX_PACKET_BYTES

ACCEPTS_PER_TURN = 16
SEND_BUFFER_BYTES = 212_992
PAUSE_MS = 1_000
READ_PACKETS = 64
"""Packets read from a socket at once, at most; batches are packets here."""

RECORD_BYTES = 8
"""What the compiled switch needs beside a packet that is read and not handled yet; the same bound must mean the same here."""

_HUNG_UP = select.EPOLLHUP | select.EPOLLERR
_READABLE = select.EPOLLIN | select.EPOLLRDHUP
_WAIT = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class _Connection:
    """One client: its socket, what it wants, what waits for it, and who waits for it."""

    number: int
    socket: socket.socket
    out: Outbox
    patterns: Counter[bytes] = field(default_factory=Counter)
    echo: bool = True
    receipt: tuple[bytes, bool] | None = None
    """The token of what it wants to know of its next MSG, and whether that is always told."""
    cred: bytes = b""
    wants_senders: bool = False
    tap: bytes | None = None
    """The pattern of what it is told of."""
    tapped: list[Packet] = field(default_factory=list)
    """Packets of the batch at hand that it is told of."""
    blocks_others: bool = False
    rules: int = 0
    sight: Sight = Sight.OWN
    unread: list[tuple[bytes, bool]] = field(default_factory=list)
    """What was read from it and is not handled yet, each with whether the kernel had cut it."""
    unread_bytes: int = 0
    """What that is charged with, until all of it is handled."""
    reads: int = READ_PACKETS
    """Packets that are read from its socket at once."""
    is_held_up: bool = False
    """It is not read until its user's connections have less unread; counted in ``blockers``."""
    is_unwatched: bool = False
    """It is not watched meanwhile: it has hung up, and epoll would report that without end."""
    is_refusing: bool = False
    """The kernel has refused descriptors that were sent to it, from the start."""
    has_descriptors: bool = False
    """The next of its packets has descriptors."""
    is_reading: bool = True
    is_at_end: bool = False
    end: End | None = None
    resets: int = 0
    interest: int = _READABLE
    blocked: dict[int, bool] = field(default_factory=dict)
    """Publishers that wait for it, the first one first, each with whether it does so because it asked for pacing."""
    blocked_at: dict[int, float] = field(default_factory=dict)
    """When each of them began to wait."""
    is_paced: bool = False
    """It waits for slow recipients."""
    holds: dict[int, Hold] = field(default_factory=dict)
    """For how long those of other users have held it up."""
    blockers: int = 0
    """Reasons not to read it: recipients that it waits for, and the backlog of its user."""
    waits: int = 0
    """Of those, recipients."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    """How long it waited for any."""
    others: Stopwatch = field(default_factory=Stopwatch)
    """How long publishers waited for it."""
    blocking_since: float | None = None
    progress_at: float | None = None
    """When its socket took anything last, as far as that was looked at; None: nobody has waited for it yet."""
    progress_mark: int = 0
    """What it had been delivered then."""
    has_fallen_back: bool = False
    """It has blocked publishers for too long, and blocks none until its queue has drained."""
    share: list[Packet] = field(default_factory=list)
    """Packets of the batch at hand that go to it."""
    received_packets: int = 0
    received_bytes: int = 0
    refused_packets: int = 0

    @property
    def is_ending(self) -> bool:
        """Whether it is to be taken down at the end of this turn."""
        return self.end is not None

    def counters(self) -> ConnectionCounters:
        """Return the counters of the contract."""
        out = self.out
        delivered = (out.delivered_packets, out.delivered_bytes, out.room.packets, out.room.bytes, out.lost_packets)
        return ConnectionCounters(self.received_packets, self.received_bytes, *delivered, self.refused_packets, out.replaced_packets)


def _entry(entry: Entry, places: dict[int, int]) -> QueueEntry:
    """Return what waits as the next switch is told of it; *places* are those of packets, by identity."""
    packet, head, payer = entry
    return places[id(packet)], None if head is None else places[id(head)], payer


def _line(sender: _Connection, packet: Packet) -> bytes:
    """Return what stands in front of a packet that a tap is told of."""
    line = b'CMSG !/tap\0{"kind":"message","time":%d,"id":%d,"cred":"%b","recipients":%d,"queued":%d,"discarded":%d%b}\n'
    named = b",".join(b"%d" % number for number in sorted(packet.missed)) if len(packet.missed) <= MISSED else b""
    return line % (
        packet.time,
        sender.number,
        sender.cred,
        packet.handed + packet.queued,
        packet.queued,
        packet.discarded,
        b',"missed":[%b]' % named if packet.missed else b"",
    )


def _ms_since(moment: float | None) -> int:
    """Return the milliseconds since a moment of the monotonic clock, 0 for none."""
    return 0 if moment is None else int((time.monotonic() - moment) * 1000)


def _take_apart(batch: bytes, limit: int) -> tuple[list[tuple[bytes, bool]], bytes]:
    """Return at most *limit* packets of a batch, and a batch of what is left of it, or nothing.

    A fault is for the sink, as a batch that begins with it: next time, if there are packets in front of it.
    """
    taken: list[tuple[bytes, bool]] = []
    place, inside = len(BATCH_HEAD), parse_batch(batch)
    while len(taken) < limit:
        try:
            inner = next(inside, None)
        except ProtocolError:
            if not taken:
                return [(batch, False)], b""
            break
        if inner is None:
            return taken, b""
        taken.append((inner, False))
        place += LENGTH_BYTES + len(inner)
    return taken, BATCH_HEAD + batch[place:] if place < len(batch) else b""


def _open_spare() -> int | None:
    """Return a descriptor to give up when there is none left to accept with, or None if there is none to be had."""
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _hang_up(peer: socket.socket, *, is_refusing: bool = False) -> bool:
    """Close a socket so that the peer can still read what it was sent: its own unread packets are thrown away first.

    Return False, and leave it open, where descriptors are among those; *is_refusing*: the kernel has refused them from the start.
    """
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
    if not is_refusing and ancillary.has_waiting(peer.fileno()):
        return False
    with contextlib.suppress(OSError):
        while peer.recv(1, socket.MSG_DONTWAIT):
            pass
    peer.close()
    return True


class Switch:
    """The plain data plane; see :class:`sbusd.dataplane.contract.Switch` for every method."""

    kind = "reference"

    def __init__(self, sink: Sink, keyspace: KeySpace, limits: LimitSettings, refusals: tuple[bytes, ...]) -> None:
        self._sink = sink
        self._keyspace = keyspace
        self._unguarded = KeySpace(keyspace.separator, is_guarded=False)
        self._limits = limits
        self._refusals = refusals
        self._epoll = select.epoll()
        self._stalls: Stalls | None = None
        self._spare: int | None = _open_spare()
        self._listeners: dict[int, socket.socket] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._is_asked = False
        """The next :meth:`run` does not wait."""
        self._by_fd: dict[int, _Connection] = {}
        self._by_number: dict[int, _Connection] = {}
        self._ending: list[_Connection] = []
        self._next = 1
        self._paused = False
        self._resume_at = 0.0
        self._accounts: dict[int, Account] = {}
        self._rules: tuple[PublishRule, ...] = ()
        self._said: dict[Refusal, Packet] = {}
        self._undelivered = 0
        self._is_delivering_secret = False
        self._count: Counter[str] = Counter()
        self._readable: Counter[int] = Counter()
        self._closer = Closer()
        self.watch(self._closer.fileno(), self._report_closed)

    # -- descriptors

    def listen(self, fd: int) -> None:
        """Accept connections from the listening socket *fd*."""
        self._listeners[fd] = socket.socket(fileno=os.dup(fd))
        ancillary.refuse(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call *callback* in each turn in which *fd* is readable."""
        self._watched[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching *fd*."""
        del self._watched[fd]
        self._epoll.unregister(fd)

    def adopt(self, fd: int, connection: int) -> None:
        """Take over the connected socket *fd* as number *connection*."""
        self._enter(fd, connection, is_new=False)

    def _enter(self, fd: int, connection: int, *, is_new: bool) -> None:
        """Take over a connected socket, which *is_new* if it was just accepted."""
        if connection in self._by_number:
            raise ValueError(f"connection {connection} exists")
        self._epoll.register(fd, _READABLE)
        is_refusing = ancillary.refuse(fd, is_new=is_new)
        peer = socket.socket(fileno=fd)
        room = Pool(self._limits.queue_packets, self._limits.queue_bytes)
        adopted = _Connection(connection, peer, Outbox(connection, peer, self._count, room, self._limits.queued_memory))
        adopted.is_refusing = is_refusing
        # As in the compiled switch: what the process before has looked at may be passed over.
        adopted.has_descriptors = not is_new and not is_refusing and ancillary.has_waiting(fd)
        adopted.socket.setblocking(False)
        adopted.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._by_fd[fd] = self._by_number[connection] = adopted
        self._next = max(self._next, connection + 1)

    def _accept_some(self, listener: socket.socket) -> None:
        """Accept what waits, a bounded number of times."""
        if self._closer.is_crowded:
            self._pause(errno.EBUSY)
            return
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE} and self._spare is not None:
                    self._accept_with_spare(listener, self._spare, error.errno or 0)
                elif error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    self._pause(error.errno or 0)
                    return
                continue
            number = self._next
            self._enter(accepted.detach(), number, is_new=True)
            self._count["accepted"] += 1
            self._sink.connected(number, self._by_number[number].socket.fileno())

    def _accept_with_spare(self, listener: socket.socket, spare: int, failure: int) -> None:
        """Give up the spare descriptor to tell a peer that there is none for it."""
        os.close(spare)
        # accept(2) wants a descriptor before it looks whether anybody waits: maybe nobody does.
        with contextlib.suppress(OSError):
            accepted, _ = listener.accept()
            with contextlib.suppress(OSError):
                accepted.send(self._refusals[Refusal.NO_DESCRIPTOR], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            self._end_socket(accepted, is_refusing=ancillary.refuse(accepted.fileno(), is_new=True))
            self._count["accept_failures"] += 1
            self._sink.accept_failed(failure)
        self._spare = _open_spare()
        if self._spare is None:
            self._pause(failure)

    def _pause(self, failure: int) -> None:
        """Stop accepting until a connection ends or some time has passed."""
        self._paused = True
        self._resume_at = time.monotonic() + PAUSE_MS / 1000
        self._count["accept_failures"] += 1
        for fd in self._listeners:
            self._epoll.modify(fd, 0)
        self._sink.accept_failed(failure)

    def _resume(self) -> None:
        """Accept again."""
        self._paused = False
        if self._spare is None:
            self._spare = _open_spare()
        for fd in self._listeners:
            self._epoll.modify(fd, select.EPOLLIN)

    # -- turns

    def measure(self, stalls: Stalls) -> None:
        """Let *stalls* measure every turn from now on."""
        self._stalls = stalls

    def turn(self, timeout_ms: int) -> int:
        """Wait for readiness, handle what is ready, and return how many descriptors were."""
        if self._paused and (timeout_ms < 0 or timeout_ms > PAUSE_MS):
            timeout_ms = PAUSE_MS
        timeout_ms = 0 if self._pending() else self._until_deadline(timeout_ms)
        if self._stalls is not None:
            self._stalls.rest()
        ready = self._epoll.poll(timeout_ms / 1000 if timeout_ms >= 0 else -1)
        if self._stalls is not None:
            self._stalls.wake()
        if self._paused and (not ready or time.monotonic() >= self._resume_at):
            self._resume()
        self._count["turns"] += 1
        fds = {fd for fd, _ in ready}
        ready += [(each.socket.fileno(), select.EPOLLIN) for each in self._pending() if each.socket.fileno() not in fds]
        self._count_readable(ready)
        for fd, events in ready:
            if fd in self._listeners:
                self._accept_some(self._listeners[fd])
            elif fd in self._watched:
                self._watched[fd]()
            elif fd in self._by_fd:
                self._serve(self._by_fd[fd], events)
        self._end_blocks()
        for connection in list(self._by_number.values()):
            told, connection.out.told = connection.out.told, 0
            if told:
                self._sink.lost(connection.number, told)
        self.take_down()
        self._is_asked = False
        return len(ready)

    def take_down(self) -> None:
        """Take down all connections that have ended."""
        while self._ending:
            self._bury(self._ending.pop(0))

    def run(self, timeout_ms: int) -> None:
        """Take one turn."""
        self.turn(0 if self._is_asked else timeout_ms)

    def return_soon(self) -> None:
        """Let the next `run` not wait: it returns after each turn anyway."""
        self._is_asked = True

    def _pending(self) -> list[_Connection]:
        """Return who goes on with what it sent before."""
        live = sorted(self._by_number.values(), key=lambda each: each.number)
        return [each for each in live if each.unread and not each.blockers and not each.is_ending]

    def _count_readable(self, ready: list[tuple[int, int]]) -> None:
        """Count how many connections of each user can be read in this turn; those that are nobody's are a user each."""
        connections = [self._by_fd[fd] for fd, events in ready if fd in self._by_fd and events & select.EPOLLIN]
        self._readable = Counter(-each.number if each.out.owner is None else each.out.owner for each in connections)

    def _batch_of(self, connection: _Connection) -> int:
        """Return how many packets are read from a connection now: those of one user share a batch while others wait."""
        uid = connection.out.owner
        if uid is None or uid not in self._readable or len(self._readable) < 2:
            return self._limits.batch_packets
        return max(1, self._limits.batch_packets // self._readable[uid])

    def _serve(self, connection: _Connection, events: int) -> None:
        """Handle one connection's readiness."""
        if connection.is_ending:
            return
        if events & select.EPOLLOUT:
            connection.out.flush()
            self._settle(connection)
        # Who waits for a recipient is not read, unless it has hung up.
        if connection.blockers and not events & _HUNG_UP:
            return
        if connection.unread or (connection.is_reading and events & (_READABLE | _HUNG_UP)):
            if connection.has_descriptors and not connection.unread:
                self._dismiss(connection, End.DESCRIPTORS)
            elif connection.unread or not self._must_wait(connection, events):
                self._read(connection)
        elif not connection.is_reading and events & _HUNG_UP:
            self._finish(connection, End.HANGUP)

    def _read(self, connection: _Connection) -> None:
        """Handle one batch of what a connection sends."""
        refused: dict[Refusal, list[bytes]] = {}
        batch = self._receive(connection)
        was_blocked = connection.blockers > 0
        self._count_received(connection, batch, 1)
        for place, (packet, is_cut) in enumerate(batch, start=1):
            self._handle(connection, packet, is_cut, refused)
            if connection.is_ending:
                break
            if connection.is_paced and not is_cut and packet.startswith(b"MSG ") and b"\0" in packet[4:]:
                self._deliver_early(connection, len(packet))
                if connection.blockers and not was_blocked:
                    self._put_back(connection, batch[place:])
                    break
        self._deliver(connection)
        for refusal, keys in sorted(refused.items()):
            self._sink.refused(connection.number, refusal, keys[0], len(keys))
        if not connection.unread:
            self._charge_unread(connection, 0)
        if connection.is_at_end and not connection.unread:
            self._finish(connection, End.HANGUP)

    def _count_received(self, connection: _Connection, packets: list[tuple[bytes, bool]], sign: int) -> None:
        """Count packets that are handled, or with *sign* -1 those that are not after all."""
        length = sum(len(packet) for packet, _ in packets)
        connection.received_packets += sign * len(packets)
        connection.received_bytes += sign * length
        self._count.update(received_packets=sign * len(packets), received_bytes=sign * length)

    def _deliver_early(self, sender: _Connection, length: int) -> None:
        """Deliver what a paced publisher has sent so far, if somebody is slow or it is much: what they are offered at once must fit."""
        self._undelivered += length
        is_slow = any(each.share and each is not sender and each.out.room.packets for each in self._by_number.values())
        if is_slow or self._undelivered > PACED_BYTES:
            self._deliver(sender)

    def _put_back(self, connection: _Connection, rest: list[tuple[bytes, bool]]) -> None:
        """Keep packets of the batch at hand as if they had not been received yet."""
        if rest:
            self._count_received(connection, rest, -1)
            connection.unread[:0] = rest
            self._charge_unread(connection, sum(RECORD_BYTES + len(packet) for packet, _ in connection.unread))

    def _receive(self, connection: _Connection) -> list[tuple[bytes, bool]]:
        """Return one batch of packets, of what is left of the last time or of the socket, each with whether the kernel cut it."""
        limit = self._batch_of(connection)
        if connection.unread:
            return self._take(connection, limit)
        connection.unread = self._read_socket(connection, min(limit, connection.reads))
        batch = self._take(connection, limit)
        if connection.unread:
            connection.reads = 1
            self._charge_unread(connection, sum(RECORD_BYTES + len(packet) for packet, _ in connection.unread))
        elif batch:
            connection.reads = min(connection.reads * 2, READ_PACKETS)
        return batch

    def _take(self, connection: _Connection, limit: int) -> list[tuple[bytes, bool]]:
        """Take at most *limit* packets of what was read from a connection, and of a batch what is in it."""
        taken: list[tuple[bytes, bool]] = []
        while connection.unread and len(taken) < limit:
            packet, is_cut = connection.unread.pop(0)
            if is_cut or not packet.startswith(BATCH_HEAD):
                taken.append((packet, is_cut))
                continue
            inner, rest = _take_apart(packet, limit - len(taken))
            taken += inner
            if rest:
                connection.unread.insert(0, (rest, False))
                break
            self._count["received_batches"] += 1
        return taken

    def _read_socket(self, connection: _Connection, limit: int) -> list[tuple[bytes, bool]]:
        """Read at most *limit* packets from a connection's socket, each with whether the kernel cut it."""
        batch: list[tuple[bytes, bool]] = []
        while len(batch) < limit:
            try:
                # A look first: descriptors are neither received nor dropped by this thread.
                data, _, flags, _ = connection.socket.recvmsg(MAX_PACKET_BYTES, 0, socket.MSG_PEEK)
                connection.has_descriptors = bool(flags & socket.MSG_CTRUNC)
                if connection.has_descriptors:
                    break
                connection.socket.recv(1)
            except OSError as error:
                if error.errno not in _WAIT:
                    connection.resets += 1
                    if error.errno != errno.ECONNRESET or connection.resets > 2:
                        if batch:
                            connection.is_at_end = True
                        else:
                            self._finish(connection, End.BROKEN)
                break
            connection.resets = 0
            if not data and self._at_end(connection):
                break
            batch.append((data, bool(flags & socket.MSG_TRUNC)))
        return batch

    def _charge_unread(self, connection: _Connection, size: int) -> None:
        """Charge a connection's user with *size* bytes that are not handled yet, in place of what it was charged with."""
        account = connection.out.account
        if account is not None:
            account.unread += size - connection.unread_bytes
            connection.unread_bytes = size
            if account.unread < UNREAD_BYTES:
                for number in account.held_up & self._by_number.keys():
                    self._let_read(self._by_number[number])
                account.held_up.clear()

    def _must_wait(self, connection: _Connection, events: int) -> bool:
        """Return whether a connection is not read now, for other connections of its user hold as much unhandled as a user may."""
        account = connection.out.account
        if account is None or account.unread < UNREAD_BYTES:
            return False
        if not connection.is_held_up:
            account.held_up.add(connection.number)
            connection.is_held_up = True
            connection.blockers += 1
            self._set_interest(connection)
        if events & _HUNG_UP:
            self._epoll.unregister(connection.socket)
            connection.is_unwatched = True
        return True

    def _let_read(self, connection: _Connection) -> None:
        """Let a connection be read whose user has less unread now."""
        connection.is_held_up = False
        if connection.is_unwatched:
            connection.is_unwatched = False
            self._epoll.register(connection.socket, connection.interest)
        self._let_go_on(connection)

    def _let_go_on(self, publisher: _Connection) -> None:
        """Take away one of the reasons not to read a connection."""
        publisher.blockers -= 1
        self._set_interest(publisher)

    def _at_end(self, connection: _Connection) -> bool:
        """Settle a read of nothing; False if it is a packet of no bytes."""
        poll = select.poll()
        poll.register(connection.socket, select.POLLRDHUP)
        state = poll.poll(0)
        if not state:
            return False
        if state[0][1] & select.POLLHUP or connection.out.is_broken:
            connection.is_at_end = True
        else:
            connection.is_reading = False
            self._set_interest(connection)
        return True

    def _handle(self, sender: _Connection, packet: bytes, is_cut: bool, refused: dict[Refusal, list[bytes]]) -> None:
        """Route a MSG, or pass anything else to the sink."""
        key, nul, _ = packet[4:].partition(b"\0")
        refusal = None
        if is_cut:
            refusal = Refusal.TRUNCATED
        elif not packet.startswith(b"MSG ") or not nul:
            self._deliver(sender)
            self._sink.control(sender.number, packet)
            return
        else:
            refusal = self._refusal(sender, key)
        if refusal is not None:
            refused.setdefault(refusal, []).append(key)
            sender.refused_packets += 1
            self._count["refused_packets"] += 1
            sender.share.append(self._said.setdefault(refusal, Packet(self._refusals[refusal], is_note=True)))
            if packet.startswith(b"MSG "):
                self._acknowledge(sender, Packet(packet))
            return
        withheld = False
        if sender.receipt is not None and self._is_secret(key):
            self._deliver(sender)
            withheld = not self._sink.may_know_recipients(sender.number, key)
            if sender.is_ending:
                return
        self._count["messages"] += 1
        matching = self._matching(key)
        reached = [c for c in matching if not c.is_ending and (c is not sender or c.echo)]
        self._count["undeliverable"] += not reached
        shared = Packet(packet, missed=[c.number for c in matching if c not in reached])
        is_secret = sender.is_paced and self._is_secret(key)
        if is_secret:
            self._deliver(sender)
            self._is_delivering_secret = True
        for recipient in reached:
            recipient.share.append(shared)
        shared.time = time.time_ns()
        for tapper in self._taps(key):
            tapper.tapped.append(shared)
        self._acknowledge(sender, shared, withheld=withheld)
        if is_secret:
            self._deliver(sender)
            self._is_delivering_secret = False

    def _is_secret(self, key: bytes) -> bool:
        """Return whether who gets a message with *key* is a part of a secret."""
        return key.startswith(SECRET_HEAD) and self._keyspace.namespace(key) is not None

    def _acknowledge(self, sender: _Connection, packet: Packet, *, withheld: bool = False) -> None:
        """If the sender wants to know what became of its packet, hand over all up to there, and tell it, unless that is *withheld*."""
        if sender.receipt is None:
            return
        (token, always), sender.receipt = sender.receipt, None
        self._deliver(sender)
        # Whether another user's queue is full is a secret: else who fills it by a secret key learns whether that has a subscriber.
        losses = 0 if sender.sight >= Sight.ALL else packet.foreign_losses
        recipients = packet.handed + packet.queued + losses
        if not sender.is_ending and (always or withheld or not recipients):
            sender.out.post(b"CMSG !/bus/receipt\0%b\0%b" % (token, b"-" if withheld else b"%d" % recipients))
            self._settle(sender)

    def _refusal(self, sender: _Connection, key: bytes) -> Refusal | None:
        """Return why a MSG of *sender* with *key* is not routed, or None."""
        if len(key) > self._limits.key_bytes:
            return Refusal.KEY_TOO_LONG
        if not self._keyspace.is_publishable(key):
            return Refusal.RESERVED
        inner = self._keyspace.inner_key(key)
        if self._is_denied(sender, key) or (inner is not None and self._is_denied(sender, inner)):
            return Refusal.POLICY
        return None

    def _is_denied(self, sender: _Connection, key: bytes) -> bool:
        """Return whether the first publish rule that is about both the sender and *key* denies."""
        for number, rule in enumerate(self._rules):
            if sender.rules >> number & 1 and key.startswith(rule.prefix):
                return not rule.is_allowed
        return False

    def _deliver(self, sender: _Connection) -> None:
        """Hand each recipient its share of what the sender has sent."""
        uid = sender.out.owner
        self._said.clear()
        self._undelivered = 0
        name = Packet(b"CMSG !/from/%d/%b\0" % (sender.number, sender.cred))
        for recipient in list(self._by_number.values()):
            share, recipient.share = recipient.share, []
            if share:
                may_block = uid is not None and not recipient.has_fallen_back and (recipient.blocks_others or uid == recipient.out.owner)
                heads = [None if packet.is_note else name for packet in share] if recipient.wants_senders else None
                is_paced = sender.is_paced and self._may_pace(sender, recipient)
                recipient.out.offer(share, uid, may_block=may_block, is_paced=is_paced, heads=heads)
                if recipient.out.has_blocked:
                    recipient.out.has_blocked = False
                    self._block(recipient, sender, is_paced=recipient.out.has_paced)
                self._settle(recipient)
        self._deliver_taps(sender)

    def _deliver_taps(self, sender: _Connection) -> None:
        """Tell taps what the sender has sent and what became of it, now that all recipients have been served."""
        told = [(tapper, tapper.tapped) for tapper in self._by_number.values() if tapper.tapped]
        # Before any tap is served: a tap is no recipient, but what becomes of a packet is noted for it too.
        lines = {packet: Packet(_line(sender, packet)) for _, packets in told for packet in packets}
        reached = {packet: (packet.handed + packet.queued, packet.foreign_losses) for packet in lines}
        for tapper, packets in told:
            tapper.tapped = []
            if not tapper.is_ending:
                tapper.out.offer(packets, sender.out.owner, may_block=False, heads=[lines[packet] for packet in packets])
                self._settle(tapper)
        for packet, (recipients, losses) in reached.items():
            packet.handed, packet.queued, packet.foreign_losses = recipients, 0, losses

    def _matching(self, key: bytes) -> list[_Connection]:
        """Return the connections that *key* reaches, by trying every pattern."""
        return [c for c in self._by_number.values() if any(self._keyspace.matches(pattern, key) for pattern in c.patterns)]

    def _taps(self, key: bytes) -> list[_Connection]:
        """Return the connections whose tap *key* reaches, oldest first."""
        live = (c for c in self._by_number.values() if c.tap is not None and not c.is_ending)
        found = (c for c in live if self._unguarded.matches(c.tap or b"", key))
        return sorted(found, key=lambda each: each.number)

    # -- blocking

    def _settle(self, connection: _Connection) -> None:
        """After anything was offered to a connection: end it if it has failed, let go on who need not wait, watch for room."""
        if connection.out.is_failed:
            connection.out.is_failed = False
            self._dismiss(connection, End.QUEUE_FULL)
        if connection.blocking_since is not None or connection.has_fallen_back:
            self._settle_blocks(connection)
        self._set_interest(connection)
        if connection.out.is_broken and not connection.is_reading:
            self._finish(connection, End.HANGUP)

    def _settle_blocks(self, recipient: _Connection) -> None:
        """Note whether a recipient's socket has taken anything, and let go on who waits for it when its queue has drained."""
        has_moved = recipient.out.delivered_packets != recipient.progress_mark
        if has_moved and not recipient.has_fallen_back:
            self._note_progress(recipient)
        if has_moved and recipient.out.is_below(0 if recipient.out.soft is SoftMode.BLOCK else self._limits.low_water):
            recipient.has_fallen_back = False
        for number, is_paced in list(recipient.blocked.items()):
            publisher = self._by_number.get(number)
            if publisher is None or recipient.out.may_go_on(publisher.out.owner, self._limits.low_water, is_paced=is_paced):
                self._unblock_one(recipient, number)

    def _may_pace(self, publisher: _Connection, recipient: _Connection) -> bool:
        """Return whether a paced publisher waits for a recipient: for those of another user only for a part of each second."""
        uid = recipient.out.owner
        if recipient.has_fallen_back or uid is None or publisher.out.owner is None:
            return False
        if uid == publisher.out.owner:
            return True
        # That it waits would tell it that the key has a subscriber.
        is_told = not self._is_delivering_secret or publisher.sight >= Sight.ALL
        return is_told and self._hold(publisher, uid).has_time()

    def _hold(self, publisher: _Connection, uid: int) -> Hold:
        """Return how a user's recipients hold up a publisher."""
        return publisher.holds.setdefault(uid, Hold(self._limits.pace_limit))

    def _hold_by(self, recipient: _Connection, number: int) -> Hold | None:
        """Return the hold that bounds how long a publisher waits for a recipient, if one does."""
        publisher, uid = self._by_number.get(number), recipient.out.owner
        if publisher is None or uid is None or not recipient.blocked[number] or publisher.out.owner == uid:
            return None
        return self._hold(publisher, uid)

    def _note_progress(self, recipient: _Connection) -> None:
        """Note that a recipient's socket has taken something just now."""
        recipient.progress_mark = recipient.out.delivered_packets
        recipient.progress_at = time.monotonic()

    def _block(self, recipient: _Connection, publisher: _Connection, *, is_paced: bool) -> None:
        """Let a publisher wait until a recipient has drained."""
        if publisher.number in recipient.blocked:
            return
        recipient.blocked[publisher.number] = is_paced
        self._begin_wait(recipient, publisher)
        if recipient.blocking_since is None:
            recipient.blocking_since = time.monotonic()
            if recipient.progress_at is None or recipient.progress_mark != recipient.out.delivered_packets:
                self._note_progress(recipient)
        self._count["blocks"] += 1
        publisher.blockers += 1
        self._set_interest(publisher)

    def _begin_wait(self, recipient: _Connection, publisher: _Connection) -> None:
        """Note that a publisher begins to wait for a recipient."""
        if hold := self._hold_by(recipient, publisher.number):
            hold.begin()
        recipient.blocked_at[publisher.number] = time.monotonic()
        for watch in (recipient.others, *([account.blocked_others] if (account := recipient.out.account) else ())):
            watch.begin()
        publisher.waits += 1
        if publisher.waits == 1:
            for watch in (publisher.stopwatch, *([account.blocked] if (account := publisher.out.account) else ())):
                watch.begin()

    def _end_wait(self, recipient: _Connection, publisher: _Connection | None) -> None:
        """Note that a publisher, None for one that has ended, waits for a recipient no more."""
        for watch in (recipient.others, *([account.blocked_others] if (account := recipient.out.account) else ())):
            watch.end()
        if publisher is not None and publisher.waits:
            publisher.waits -= 1
            if not publisher.waits:
                self._end_waiting(publisher)

    def _end_waiting(self, publisher: _Connection) -> None:
        """Note that a publisher waits for no recipient any more."""
        publisher.waits = 0
        for watch in (publisher.stopwatch, *([account.blocked] if (account := publisher.out.account) else ())):
            watch.end()

    def _unblock(self, recipient: _Connection) -> None:
        """Let all go on that wait for a recipient."""
        for number in list(recipient.blocked):
            self._unblock_one(recipient, number)

    def _unblock_one(self, recipient: _Connection, number: int) -> None:
        """Let one publisher go on that waits for a recipient."""
        if hold := self._hold_by(recipient, number):
            hold.end()
        del recipient.blocked[number]
        del recipient.blocked_at[number]
        self._end_wait(recipient, self._by_number.get(number))
        if number in self._by_number:
            self._let_go_on(self._by_number[number])
        if not recipient.blocked:
            recipient.blocking_since = None

    def _until_deadline(self, timeout_ms: int) -> int:
        """Return how long a turn may wait, so that who is blocked for too long goes on in time."""
        for connection in self._by_number.values():
            if connection.blocking_since is not None:
                end = min(connection.blocking_since + self._limits.block_timeout, self._idle_until(connection))
                end = min([end, *(hold.until for number in connection.blocked if (hold := self._hold_by(connection, number)))])
                left_ms = max(0, int((end - time.monotonic()) * 1000) + 1)
                timeout_ms = left_ms if timeout_ms < 0 else min(timeout_ms, left_ms)
        return timeout_ms

    def _end_blocks(self) -> None:
        """Let publishers go on that have been blocked for too long."""
        for connection in self._by_number.values():
            if connection.blocking_since is not None and time.monotonic() > self._idle_until(connection):
                # epoll reports room only when most of the socket is free: a slow reader makes progress before.
                connection.out.flush()
                self._settle(connection)
            since = connection.blocking_since
            if since is not None and time.monotonic() > min(since + self._limits.block_timeout, self._idle_until(connection)):
                self._count["fallbacks"] += 1
                connection.has_fallen_back = True
                connection.progress_mark = connection.out.delivered_packets
                self._unblock(connection)
            for number in list(connection.blocked):
                hold = self._hold_by(connection, number)
                if hold is not None and hold.until <= time.monotonic():
                    self._unblock_one(connection, number)

    def _idle_until(self, recipient: _Connection) -> float:
        """Return until when a recipient that blocks publishers may take nothing."""
        return (recipient.progress_at or 0.0) + self._limits.progress_timeout

    def _dismiss(self, connection: _Connection, end: End) -> None:
        """End a client that misbehaves, and tell it if that can be."""
        if connection.is_ending:
            return
        self._finish(connection, end)
        connection.out.part(self._refusals[Refusal[end.name]])

    def _set_interest(self, connection: _Connection) -> None:
        """Tell epoll what a connection waits for."""
        is_read = connection.is_reading and not connection.blockers
        interest = (_READABLE if is_read else 0) | (select.EPOLLOUT if connection.out.room.packets else 0)
        if interest != connection.interest:
            connection.interest = interest
            if not connection.is_unwatched:
                self._epoll.modify(connection.socket, interest)

    # -- ends

    def _finish(self, connection: _Connection, end: End) -> None:
        """Mark a connection for the end of the turn."""
        if connection.end is None:
            connection.end = end
            self._ending.append(connection)

    def _bury(self, connection: _Connection) -> None:
        """Take down one connection that has ended, and tell the sink."""
        out = connection.out
        out.abandon()
        counters = connection.counters()._replace(queued_packets=out.left_packets, queued_bytes=out.left_bytes)
        self._unblock(connection)
        if connection.waits:
            self._end_waiting(connection)
        connection.unread.clear()
        self._charge_unread(connection, 0)
        self._leave_account(connection)
        del self._by_number[connection.number]
        del self._by_fd[connection.socket.fileno()]
        is_closed = self._hang_up(connection)
        if self._paused and not self._closer.is_crowded:
            self._resume()
        if out.told or out.untold:
            # What it lost and was not told of any more.
            self._sink.lost(connection.number, out.told + out.untold)
        self._sink.ended(connection.number, connection.end or End.HANGUP, counters)
        if is_closed:
            self._sink.closed(connection.number)

    def _hang_up(self, connection: _Connection) -> bool:
        """Close a connection's socket; return whether it is closed."""
        if not connection.is_unwatched:
            self._epoll.unregister(connection.socket)
        return self._end_socket(connection.socket, connection.number, is_refusing=connection.is_refusing)

    def _end_socket(self, peer: socket.socket, number: int | None = None, *, is_refusing: bool = False) -> bool:
        """Close a socket, or let the closer do that and report connection *number*; return whether it is closed."""
        if _hang_up(peer, is_refusing=is_refusing):
            return True
        self._closer.add(peer.detach(), number)
        return False

    def _report_closed(self) -> None:
        """Tell the sink which connections are closed at last."""
        for number in self._closer.take_closed():
            self._sink.closed(number)
        if self._paused and not self._closer.is_crowded:
            self._resume()

    def closing(self) -> list[int]:
        """Return the descriptors of connections that have ended and are not closed yet."""
        return self._closer.waiting()

    def _leave_account(self, connection: _Connection) -> None:
        """Forget a user with its last connection."""
        account = connection.out.account
        if account is not None:
            account.connections -= 1
            if not account.connections:
                del self._accounts[account.uid]

    # -- what the control plane asks for

    def set_party(
        self, connection: int, uid: int, *, blocks_others: bool = False, rules: int = 0, sight: Sight = Sight.OWN, cred: bytes = b""
    ) -> None:
        """Say whose a connection is, whom it may block, which publish rules are about it, what it may know, and how it is named."""
        party = self._by_number[connection]
        party.blocks_others, party.rules, party.sight, party.cred = blocks_others, rules, sight, cred
        if party.out.owner == uid:
            return
        if party.out.account is not None or party.out.room.packets or party.unread:
            raise ValueError(f"connection {connection} is already somebody's")
        party.out.account = self._accounts.setdefault(uid, Account(uid))
        party.out.account.connections += 1

    def set_user_limits(self, uid: int, packets: int, size: int) -> None:
        """Bound what may wait for all connections of a user together."""
        room = self._accounts[uid].room
        room.packets_limit, room.bytes_limit = packets, size

    def user_counters(self, uid: int) -> UserCounters:
        """Return the counters of a user."""
        return self._accounts[uid].counters() if uid in self._accounts else UserCounters(0, 0, 0)

    def user_waits(self, uid: int) -> UserWaits:
        """Return for how long a user's publishers and recipients were part of waits."""
        account = self._accounts.get(uid)
        return UserWaits(0, 0) if account is None else UserWaits(account.blocked.ms(), account.blocked_others.ms())

    def blockers(self, most: int) -> list[int]:
        """Return some connections that publishers wait for now."""
        return [number for number, each in self._by_number.items() if each.blocked][:most]

    def waits(self, connection: int) -> Waits:
        """Return whom a connection waits for, and who waits for it."""
        asked = self._by_number[connection]
        holders = [each for each in self._by_number.values() if connection in each.blocked] if asked.waits else []
        blocked_by = [(each, each.number, connection) for each in holders[:NAMED_WAITS]]
        blocks = [(asked, number, number) for number in sorted(list(asked.blocked)[:NAMED_WAITS])]
        named = [
            tuple(
                Wait(other, recipient.blocked[publisher], _ms_since(recipient.blocked_at[publisher]))
                for recipient, other, publisher in waits
            )
            for waits in (blocked_by, blocks)
        ]
        return Waits(asked.is_paced, asked.waits, len(asked.blocked), asked.stopwatch.ms(), asked.others.ms(), *named)

    def set_publish_rules(self, rules: tuple[PublishRule, ...]) -> None:
        """Set the rules for MSG."""
        if len(rules) > MAX_PUBLISH_RULES:
            raise ValueError(f"{len(rules)} publish rules; {MAX_PUBLISH_RULES} at most")
        self._rules = rules

    def subscribe(self, connection: int, pattern: bytes) -> None:
        """Store one more instance of *pattern*."""
        self._by_number[connection].patterns[pattern] += 1

    def unsubscribe(self, connection: int, pattern: bytes) -> bool:
        """Remove one instance of *pattern* and return True, or return False if there is none."""
        patterns = self._by_number[connection].patterns
        if pattern not in patterns:
            return False
        patterns[pattern] -= 1
        if not patterns[pattern]:
            del patterns[pattern]
        return True

    def instances(self, connection: int, pattern: bytes) -> int:
        """Return how many instances of *pattern* the connection has stored."""
        return self._by_number[connection].patterns[pattern]

    def announce(self, packet: bytes, *, sight: Sight, uid: int, cred: bytes = b"") -> None:
        """Hand a MSG of the bus itself, whose credentials are *cred*, to those with a pattern that takes its key who may know of it."""
        key = packet[4:].partition(b"\0")[0]
        for recipient in sorted(self._matching(key), key=lambda each: each.number):
            if not recipient.is_ending and (recipient.sight >= sight or recipient.out.owner == uid):
                recipient.out.post(b"CMSG !/from/0/%b\0%b" % (cred, packet) if recipient.wants_senders else packet, uid)
                self._settle(recipient)

    def set_tap(self, connection: int, pattern: bytes | None) -> None:
        """Let the connection be told of what *pattern* takes, or with None of nothing."""
        self._by_number[connection].tap = pattern

    def is_tapped(self) -> bool:
        """Return whether any connection has a tap."""
        return any(c.tap is not None and not c.is_ending for c in self._by_number.values())

    def report(self, key: bytes, packet: bytes, *, uid: int) -> None:
        """Hand a packet of the bus itself, which *uid* has caused, to the taps whose pattern takes *key*."""
        for tapper in self._taps(key):
            tapper.out.post(packet, uid)
            self._settle(tapper)

    def send(self, connection: int, packet: bytes) -> None:
        """Hand *packet* to the connection, behind all that waits for it."""
        recipient = self._by_number[connection]
        if not recipient.is_ending:
            recipient.out.post(packet)
            self._settle(recipient)

    def configure(self, connection: int, settings: ConnectionSettings) -> None:
        """Set what the connection has asked for itself."""
        configured = self._by_number[connection]
        configured.echo, configured.wants_senders, configured.is_paced = settings.echo, settings.sender, settings.pace
        configured.out.soft, configured.out.hard = SoftMode(settings.soft), HardMode(settings.hard)
        configured.out.set_order(Order(settings.order))
        configured.out.batch_bytes = MAX_BATCH_BYTES if settings.batch else 0

    def arm_receipt(self, connection: int, token: bytes, *, always: bool) -> None:
        """Tell the connection what becomes of its next MSG."""
        self._by_number[connection].receipt = token, always

    def disconnect(self, connection: int, last_words: bytes = b"") -> None:
        """End a connection: offer its socket *last_words*, and close."""
        ended = self._by_number[connection]
        if ended.is_ending:
            return
        if last_words:
            ended.out.part(last_words)
        self._finish(ended, End.DISCONNECTED)

    def connections(self) -> list[int]:
        """Return the numbers of all connections, oldest first."""
        return sorted(self._by_number)

    def patterns(self, connection: int) -> dict[bytes, int]:
        """Return the connection's patterns, each with how many instances are stored."""
        return dict(self._by_number[connection].patterns)

    def patterns_after(self, connection: int, after: bytes | None, most: int) -> list[bytes]:
        """Return up to *most* of the connection's patterns behind *after* in the order of their bytes; None: the first."""
        return sorted(pattern for pattern in self._by_number[connection].patterns if after is None or pattern > after)[:most]

    def recipients(self, key: bytes) -> list[int]:
        """Return the connections with a pattern that takes *key*."""
        return sorted(c.number for c in self._matching(key)) if self._keyspace.is_publishable(key) else []

    def connection_counters(self, connection: int) -> ConnectionCounters:
        """Return the counters of one connection."""
        return self._by_number[connection].counters()

    def counters(self) -> SwitchCounters:
        """Return the counters of the switch."""
        live = [c.counters() for c in self._by_number.values()]
        derived = {
            "connections": len(live),
            "queued_packets": sum(c.queued_packets for c in live),
            "queued_bytes": sum(c.queued_bytes for c in live),
            "subscriptions": sum(c.patterns.total() for c in self._by_number.values()),
            "cache_hits": 0,
            "cache_misses": 0,
        }
        return SwitchCounters(**{name: derived.get(name, self._count[name]) for name in SwitchCounters._fields})

    # -- what survives it

    def settings(self, connection: int) -> ConnectionSettings:
        """Return what the connection has asked for itself."""
        asked = self._by_number[connection]
        modes = int(asked.out.soft), int(asked.out.hard), int(asked.out.order)
        return ConnectionSettings(asked.echo, *modes, asked.wants_senders, asked.out.batch_bytes != 0, asked.is_paced)

    def progress(self, connection: int) -> ConnectionProgress:
        """Return what the connection has done."""
        done = self._by_number[connection]
        counters = done.counters()._asdict()
        kept = {name: counters[name] for name in counters if not name.startswith("queued")}
        token, always = (None, False) if done.receipt is None else done.receipt
        return ConnectionProgress(
            **kept,
            receipt_token=None if token is None else token.decode("latin-1"),
            receipt_always=always,
            untold=done.out.untold,
            untold_replaced=done.out.untold_replaced,
            unreported=done.out.told,
            blocks=tuple(done.blocked),
            paces=tuple(number for number, is_paced in done.blocked.items() if is_paced),
            held_us={uid: int(hold.spent() * 1e6) for uid, hold in done.holds.items()},
            blocking_ms=_ms_since(done.blocking_since),
            idle_ms=0 if done.blocking_since is None else _ms_since(done.progress_at),
            progress_mark=done.progress_mark,
            has_fallen_back=done.has_fallen_back,
            reads=done.reads,
            blocked_ms=done.stopwatch.ms(),
            blocked_others_ms=done.others.ms(),
        )

    def queues(self) -> tuple[list[bytes], dict[int, Queue]]:
        """Return the packets that wait, each once, and what of them waits for whom."""
        places: dict[int, int] = {}
        packets: list[bytes] = []
        queues = {}
        for number, connection in self._by_number.items():
            lists = (connection.out.waiting, connection.out.notes)
            for packet in (part for entry in (*lists[0], *lists[1]) for part in entry[:2] if part is not None):
                if places.setdefault(id(packet), len(packets)) == len(packets):
                    packets.append(packet.data)
            waiting, notes = (tuple(_entry(entry, places) for entry in each) for each in lists)
            unread = tuple((len(packets) + place, is_cut) for place, (_, is_cut) in enumerate(connection.unread))
            packets += [packet for packet, _ in connection.unread]
            queue = Queue(waiting, notes, unread, connection.out.replaceable_from)
            if not queue.is_empty:
                queues[number] = queue
        return packets, queues

    def tally(self) -> SwitchTotals:
        """Return what the switch has done."""
        counted = {each.name: self._count[each.name] for each in fields(SwitchTotals) if not each.name.endswith("_by_user")}
        return SwitchTotals(
            **counted,
            lost_by_user={uid: account.lost_packets for uid, account in self._accounts.items()},
            blocked_by_user={uid: (account.blocked.ms(), account.blocked_others.ms()) for uid, account in self._accounts.items()},
        )

    def next_connection(self) -> int:
        """Return the number that the next connection will get."""
        return self._next

    def restore(self, connection: int, settings: ConnectionSettings, progress: ConnectionProgress) -> None:
        """Let an adopted connection go on where it was."""
        restored = self._by_number[connection]
        out = restored.out
        self.configure(connection, settings)
        restored.received_packets, restored.received_bytes = progress.received_packets, progress.received_bytes
        restored.refused_packets, restored.reads = progress.refused_packets, progress.reads
        out.delivered_packets, out.delivered_bytes = progress.delivered_packets, progress.delivered_bytes
        out.replaced_packets, out.untold_replaced = progress.replaced_packets, progress.untold_replaced
        out.lost_packets, out.untold, out.told = progress.lost_packets, progress.untold, progress.unreported
        if progress.receipt_token is not None:
            restored.receipt = progress.receipt_token.encode("latin-1"), progress.receipt_always
        restored.blocked = {number: number in progress.paces for number in progress.blocks}
        for uid, spent in progress.held_us.items():
            # As if all of it had been just now.
            self._hold(restored, uid).charge(spent / 1e6)
        if restored.blocked:
            restored.blocking_since = time.monotonic() - progress.blocking_ms / 1000
        restored.progress_at = time.monotonic() - progress.idle_ms / 1000
        restored.stopwatch.seconds, restored.others.seconds = progress.blocked_ms / 1000, progress.blocked_others_ms / 1000
        restored.progress_mark, restored.has_fallen_back = progress.progress_mark, progress.has_fallen_back

    def restore_all(self, packets: list[bytes], queues: dict[int, Queue], totals: SwitchTotals, next_connection: int) -> None:
        """Let the switch go on where another was."""
        self._next = max(self._next, next_connection)
        self._restore_totals(totals)
        shared = [Packet(data) for data in packets]
        for number, queue in queues.items():
            if number in self._by_number:
                restored = self._by_number[number]
                restored.out.requeue(shared, queue)
                restored.unread = [(packets[place], is_cut) for place, is_cut in queue.unread]
                self._charge_unread(restored, sum(RECORD_BYTES + len(packet) for packet, _ in restored.unread))
            else:
                # It was given up with its connection, which did not come back.
                self._count["abandoned_packets"] += len(queue.waiting) + len(queue.notes)
        for connection in self._by_number.values():
            connection.blocked = {number: paced for number, paced in connection.blocked.items() if number in self._by_number}
            for publisher in connection.blocked:
                self._by_number[publisher].blockers += 1
                self._begin_wait(connection, self._by_number[publisher])
            if not connection.blocked:
                connection.blocking_since = None
        for connection in self._by_number.values():
            self._set_interest(connection)

    def _restore_totals(self, totals: SwitchTotals) -> None:
        """Add what another switch has done to this one's counters."""
        for each in fields(SwitchTotals):
            if not each.name.endswith("_by_user"):
                self._count[each.name] += getattr(totals, each.name)
        for uid, account in self._accounts.items():
            account.lost_packets = totals.lost_by_user.get(uid, account.lost_packets)
            blocked, others = totals.blocked_by_user.get(uid, (0, 0))
            account.blocked.seconds += blocked / 1000
            account.blocked_others.seconds += others / 1000

    def close(self, *, keeps_connections: bool = False) -> None:
        """Close every connection without telling the sink, and the switch's own descriptors."""
        self._stalls = None
        for connection in self._by_number.values():
            if keeps_connections:
                connection.socket.close()
            else:
                self._hang_up(connection)
        self._by_number.clear()
        for listener in self._listeners.values():
            listener.close()
        self._epoll.close()
        self._watched.clear()
        self._closer.close()
        if self._spare is not None:
            os.close(self._spare)
