"""The plain switch: the contract in the words of Python, one packet and one system call at a time.

It is what the compiled switch is tested against, and is used only when it is asked for by name. It is written to be read: it
matches by trying every pattern, and copies every packet.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sbusd.config.settings import LimitSettings
from sbusd.daemon.contract import ConnectionCounters, End, Refusal, Sink, SwitchCounters
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.limits import MAX_PACKET_BYTES

ACCEPTS_PER_TURN = 16
FLUSH_PACKETS = 256
SEND_BUFFER_BYTES = 212_992
PAUSE_MS = 1_000
_HUNG_UP = select.EPOLLHUP | select.EPOLLERR
_READABLE = select.EPOLLIN | select.EPOLLRDHUP
_WAIT = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})


@dataclass(slots=True, eq=False)
class _Connection:
    """One client: its socket, what it wants, what waits for it."""

    number: int
    socket: socket.socket
    patterns: Counter[bytes] = field(default_factory=Counter)
    waiting: deque[bytes] = field(default_factory=deque)
    echo: bool = True
    is_reading: bool = True
    is_broken: bool = False
    is_at_end: bool = False
    end: End | None = None
    resets: int = 0
    interest: int = _READABLE
    untold: int = 0
    told: int = 0
    received_packets: int = 0
    received_bytes: int = 0
    delivered_packets: int = 0
    delivered_bytes: int = 0
    lost_packets: int = 0
    refused_packets: int = 0

    @property
    def is_ending(self) -> bool:
        """Whether it is to be taken down at the end of this turn."""
        return self.end is not None

    def counters(self) -> ConnectionCounters:
        """Return the counters of the contract."""
        return ConnectionCounters(
            self.received_packets,
            self.received_bytes,
            self.delivered_packets,
            self.delivered_bytes,
            len(self.waiting),
            sum(map(len, self.waiting)),
            self.lost_packets,
            self.refused_packets,
        )


def _open_spare() -> int | None:
    """Return a descriptor to give up when there is none left to accept with, or None if there is none to be had."""
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _hang_up(peer: socket.socket) -> None:
    """Close a socket so that the peer can still read what it was sent: its own unread packets are thrown away first."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
        while peer.recv(1, socket.MSG_DONTWAIT):
            pass
    peer.close()


class Switch:
    """The plain data plane; see :class:`sbusd.daemon.contract.Switch` for every method."""

    kind = "reference"

    def __init__(self, sink: Sink, keyspace: KeySpace, limits: LimitSettings, refusals: tuple[bytes, ...]) -> None:
        self._sink = sink
        self._keyspace = keyspace
        self._limits = limits
        self._refusals = refusals
        self._epoll = select.epoll()
        self._spare: int | None = _open_spare()
        self._listeners: dict[int, socket.socket] = {}
        self._watched: dict[int, Callable[[], None]] = {}
        self._by_fd: dict[int, _Connection] = {}
        self._by_number: dict[int, _Connection] = {}
        self._ending: list[_Connection] = []
        self._next = 1
        self._paused = False
        self._count: Counter[str] = Counter()

    # -- descriptors

    def listen(self, fd: int) -> None:
        """Accept connections from the listening socket *fd*."""
        self._listeners[fd] = socket.socket(fileno=os.dup(fd))
        self._epoll.register(fd, select.EPOLLIN)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call *callback* in each turn in which *fd* is readable."""
        self._watched[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def adopt(self, fd: int, connection: int) -> None:
        """Take over the connected socket *fd* as number *connection*."""
        if connection in self._by_number:
            raise ValueError(f"connection {connection} exists")
        self._epoll.register(fd, _READABLE)
        adopted = _Connection(connection, socket.socket(fileno=fd))
        adopted.socket.setblocking(False)
        adopted.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._by_fd[fd] = self._by_number[connection] = adopted
        self._next = max(self._next, connection + 1)

    def _accept_some(self, listener: socket.socket) -> None:
        """Accept what waits, a bounded number of times."""
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
            self.adopt(accepted.detach(), number)
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
            _hang_up(accepted)
            self._count["accept_failures"] += 1
            self._sink.accept_failed(failure)
        self._spare = _open_spare()
        if self._spare is None:
            self._pause(failure)

    def _pause(self, failure: int) -> None:
        """Stop accepting until a connection ends or some time has passed."""
        self._paused = True
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

    def turn(self, timeout_ms: int) -> int:
        """Wait for readiness, handle what is ready, and return how many descriptors were."""
        if self._paused and (timeout_ms < 0 or timeout_ms > PAUSE_MS):
            timeout_ms = PAUSE_MS
        ready = self._epoll.poll(timeout_ms / 1000 if timeout_ms >= 0 else -1)
        if not ready and self._paused:
            self._resume()
        self._count["turns"] += 1
        for fd, events in ready:
            if fd in self._listeners:
                self._accept_some(self._listeners[fd])
            elif fd in self._watched:
                self._watched[fd]()
            else:
                self._serve(self._by_fd[fd], events)
        for connection in list(self._by_number.values()):
            told, connection.told = connection.told, 0
            if told:
                self._sink.lost(connection.number, told)
        while self._ending:
            self._bury(self._ending.pop())
        return len(ready)

    def _serve(self, connection: _Connection, events: int) -> None:
        """Handle one connection's readiness."""
        if connection.is_ending:
            return
        if events & select.EPOLLOUT:
            self._flush(connection, FLUSH_PACKETS)
        if connection.is_reading and events & (_READABLE | _HUNG_UP):
            self._read(connection)
        elif not connection.is_reading and events & _HUNG_UP:
            self._finish(connection, End.HANGUP)

    def _read(self, connection: _Connection) -> None:
        """Handle one batch of what a connection sends."""
        refused: dict[Refusal, list[bytes]] = {}
        for packet, is_cut in self._receive(connection):
            self._handle(connection, packet, is_cut, refused)
            if connection.is_ending:
                break
        for refusal, keys in sorted(refused.items()):
            self._sink.refused(connection.number, refusal, keys[0], len(keys))
        if connection.is_at_end:
            self._finish(connection, End.HANGUP)

    def _receive(self, connection: _Connection) -> list[tuple[bytes, bool]]:
        """Read one batch: packets, each with whether the kernel cut it."""
        batch: list[tuple[bytes, bool]] = []
        while len(batch) < self._limits.batch_packets:
            try:
                data, _, flags, _ = connection.socket.recvmsg(MAX_PACKET_BYTES)
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
            connection.received_packets += 1
            connection.received_bytes += len(data)
            self._count.update(received_packets=1, received_bytes=len(data))
            batch.append((data, bool(flags & socket.MSG_TRUNC)))
        return batch

    def _at_end(self, connection: _Connection) -> bool:
        """Settle a read of nothing; False if it is a packet of no bytes."""
        poll = select.poll()
        poll.register(connection.socket, select.POLLRDHUP)
        state = poll.poll(0)
        if not state:
            return False
        if state[0][1] & select.POLLHUP or connection.is_broken:
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
            self._sink.control(sender.number, packet)
            return
        elif len(key) > self._limits.key_bytes:
            refusal = Refusal.KEY_TOO_LONG
        elif not self._keyspace.is_publishable(key):
            refusal = Refusal.RESERVED
        if refusal is not None:
            refused.setdefault(refusal, []).append(key)
            sender.refused_packets += 1
            self._count["refused_packets"] += 1
            self._offer(sender, self._refusals[refusal])
            return
        self._count["messages"] += 1
        reached = [c for c in self._matching(key) if c is not sender or c.echo]
        self._count["undeliverable"] += not reached
        for recipient in reached:
            self._offer(recipient, packet)

    def _matching(self, key: bytes) -> list[_Connection]:
        """Return the connections that *key* reaches, by trying every pattern."""
        live = (c for c in self._by_number.values() if not c.is_ending)
        return [c for c in live if any(self._keyspace.matches(pattern, key) for pattern in c.patterns)]

    # -- what waits for a client

    def _offer(self, recipient: _Connection, packet: bytes) -> None:
        """Hand over one packet: to the socket if nothing waits, else to the queue, else it is lost."""
        self._count["deliveries"] += 1
        if recipient.is_broken:
            self._count["abandoned_packets"] += 1
            return
        outcome = errno.EAGAIN
        if not recipient.waiting and not recipient.untold:
            outcome = self._transmit(recipient, packet)
        if outcome == errno.EPIPE:
            self._count["abandoned_packets"] += 1
        elif outcome:
            if not self._tell_loss(recipient) or not self._has_room(recipient, len(packet)):
                self._lose(recipient)
            else:
                recipient.waiting.append(packet)
            if outcome == errno.EMSGSIZE or not recipient.waiting:
                self._flush(recipient, FLUSH_PACKETS)
        self._set_interest(recipient)

    def _transmit(self, recipient: _Connection, packet: bytes) -> int:
        """Send one packet; return 0, EAGAIN if it has to wait, EMSGSIZE if it never fits, EPIPE if the peer is gone."""
        try:
            recipient.socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno in _WAIT:
                return errno.EAGAIN
            if error.errno == errno.EMSGSIZE:
                return errno.EMSGSIZE
            if error.errno not in {errno.EPIPE, errno.ECONNRESET}:
                # The peer may well live, and would wait for ever for what it is not sent: so it sees the end at once.
                with contextlib.suppress(OSError):
                    recipient.socket.shutdown(socket.SHUT_RDWR)
            recipient.is_broken = True
            if not recipient.is_reading:
                self._finish(recipient, End.HANGUP)
            return errno.EPIPE
        recipient.delivered_packets += 1
        recipient.delivered_bytes += len(packet)
        self._count.update(delivered_packets=1, delivered_bytes=len(packet))
        return 0

    def _has_room(self, recipient: _Connection, length: int) -> bool:
        """Return whether one more packet of that length may wait."""
        held = sum(map(len, recipient.waiting))
        return len(recipient.waiting) < self._limits.queue_packets and held + length <= self._limits.queue_bytes

    def _lose(self, recipient: _Connection) -> None:
        """Count a packet that is discarded."""
        recipient.lost_packets += 1
        recipient.untold += 1
        self._count["lost_packets"] += 1

    def _notice(self, recipient: _Connection) -> bytes:
        """Return the packet that tells the peer what it lost; the count starts anew."""
        notice = b"CMSG !/bus/lost\0%d" % recipient.untold
        recipient.told += recipient.untold
        recipient.untold = 0
        self._count["deliveries"] += 1
        return notice

    def _tell_loss(self, recipient: _Connection) -> bool:
        """Queue the notice of a loss; return whether there is none left to tell."""
        if recipient.untold and self._has_room(recipient, 48):
            recipient.waiting.append(self._notice(recipient))
        return not recipient.untold

    def _flush(self, recipient: _Connection, packets: int) -> None:
        """Send what waits, at most *packets*."""
        for _ in range(packets):
            self._tell_loss(recipient)
            if not recipient.waiting:
                break
            outcome = self._transmit(recipient, recipient.waiting[0])
            if outcome == errno.EAGAIN:
                break
            if outcome == errno.EPIPE:
                self._count["abandoned_packets"] += len(recipient.waiting)
                recipient.waiting.clear()
                break
            recipient.waiting.popleft()
            if outcome == errno.EMSGSIZE:
                self._lose(recipient)
                recipient.waiting.appendleft(self._notice(recipient))
        self._tell_loss(recipient)
        self._set_interest(recipient)

    def _set_interest(self, connection: _Connection) -> None:
        """Tell epoll what a connection waits for."""
        interest = (_READABLE if connection.is_reading else 0) | (select.EPOLLOUT if connection.waiting else 0)
        if interest != connection.interest:
            connection.interest = interest
            self._epoll.modify(connection.socket, interest)

    # -- ends

    def _finish(self, connection: _Connection, end: End) -> None:
        """Mark a connection for the end of the turn."""
        if connection.end is None:
            connection.end = end
            self._ending.append(connection)

    def _bury(self, connection: _Connection) -> None:
        """Take down one connection that has ended, and tell the sink."""
        counters = connection.counters()
        self._count["abandoned_packets"] += len(connection.waiting)
        del self._by_number[connection.number]
        del self._by_fd[connection.socket.fileno()]
        self._hang_up(connection)
        if self._paused:
            self._resume()
        self._sink.ended(connection.number, connection.end or End.HANGUP, counters)

    def _hang_up(self, connection: _Connection) -> None:
        """Close a connection's socket."""
        self._epoll.unregister(connection.socket)
        _hang_up(connection.socket)

    # -- what the control plane asks for

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

    def send(self, connection: int, packet: bytes) -> None:
        """Hand *packet* to the connection, behind all that waits for it."""
        recipient = self._by_number[connection]
        if not recipient.is_ending:
            self._offer(recipient, packet)

    def set_echo(self, connection: int, on: bool) -> None:
        """Set whether the connection gets its own messages."""
        self._by_number[connection].echo = on

    def disconnect(self, connection: int, last_words: bytes = b"") -> None:
        """End a connection: offer its socket *last_words*, and close."""
        ended = self._by_number[connection]
        if ended.is_ending:
            return
        if last_words:
            self._count["abandoned_packets"] += len(ended.waiting)
            ended.waiting.clear()
            ended.untold = 0
            self._offer(ended, last_words)
        self._finish(ended, End.DISCONNECTED)

    def connections(self) -> list[int]:
        """Return the numbers of all connections, oldest first."""
        return sorted(self._by_number)

    def patterns(self, connection: int) -> dict[bytes, int]:
        """Return the connection's patterns, each with how many instances are stored."""
        return dict(self._by_number[connection].patterns)

    def recipients(self, key: bytes) -> list[int]:
        """Return the connections that a MSG with *key* would reach now."""
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

    def close(self) -> None:
        """Close every connection without telling the sink, and the switch's own descriptors."""
        for connection in self._by_number.values():
            self._hang_up(connection)
        self._by_number.clear()
        for listener in self._listeners.values():
            listener.close()
        self._epoll.close()
        if self._spare is not None:
            os.close(self._spare)
