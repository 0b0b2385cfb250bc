"""Fuzz target: whatever clients send, the bus lives, makes no internal error, balances its books, and sends nothing unknown.

Input: a byte of choices (bits: 2 short queues, 4 the bus has no owner, 8 and 16 which keys, 32 the clients may vouch, 64 they may
send direct messages), then steps: a
byte that says what to do (bits 1 and 2: which client; 4 then a turn; 8 then it reads; 16 the packet with 60,000 bytes behind it;
32 the packet twenty times; 64 it hangs up instead), a byte for the packet's length, and the packet.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import replace

from sbus.protocol.direct_messages import parse_direct
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import Publish, parse_packet
from sbus.protocol.vouching import parse_vouched
from sbus_programs.config.rules import RightsSettings, Subjects
from sbus_programs.config.settings import DaemonSettings, LimitSettings, LogSettings
from sbus_programs.systemd.log_records import Record, journal_datagram, standard_error_line
from sbusd.broker.access import BusOwnership
from sbusd.broker.broker import Broker
from sbusd.broker.log import BusLog
from sbusd.broker.log_messages import INTERNAL_ERROR

LIMITS = (LimitSettings(), LimitSettings(queue_packets=3, queue_bytes=409_600, key_bytes=16, batch_packets=2, cache_bytes=65_536))

MOST_STEPS = 24
CLIENTS = 4
MANY = 20
PADDING = bytes(60_000)
PING = b"CMSG !/bus/ping\0still there"


def check(data: bytes) -> None:
    """The bus lives, internal_errors stays 0, the books balance, and each reply is a CMSG with a NUL or a MSG that was sent."""
    sink = _Records()
    # A clock that stands still: what is recorded depends on the input alone.
    journal = BusLog(sink, LogSettings(level="debug"), clock=lambda: 0.0)
    bus = _Bus(data[0] if data else 0, journal)
    try:
        for action, packet in _steps(data[1:]):
            bus.step(action, packet)
        bus.check_end()
    finally:
        bus.close()
        journal.close(60)
    for record in sink.written:
        assert record.message is not INTERNAL_ERROR, record.trace
        assert standard_error_line(record, "sbusd").isprintable()
        assert journal_datagram(record, "sbusd")
    assert journal.counters.dropped == 0


def _steps(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut *data* into steps."""
    for _ in range(MOST_STEPS):
        if len(data) < 2:
            return
        end = 2 + data[1]
        yield data[0], data[2:end]
        data = data[end:]


class _Records:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[Record] = []

    def write(self, record: Record) -> None:
        self.written.append(record)

    def close(self) -> None:
        pass


class _Bus:
    """A broker with a switch, and clients on socket pairs."""

    def __init__(self, choices: int, journal: BusLog) -> None:
        settings = (
            DaemonSettings(limits=LIMITS[choices >> 1 & 1]),
            DaemonSettings(limits=LIMITS[choices >> 1 & 1], separator="."),
            DaemonSettings(limits=LIMITS[choices >> 1 & 1], credential_prefix="!/cred/1/1/1"),
        )[(choices >> 3 & 3) % 3]
        uid = os.geteuid()
        vouch, deliver = (Subjects(users=(uid,)) if choices & bit else Subjects() for bit in (32, 64))
        settings = replace(settings, rights=RightsSettings(vouch=vouch, deliver=deliver))
        ownership = BusOwnership(uid, None, frozenset() if choices & 4 else frozenset({uid}))
        self.keyspace = settings.keyspace
        self.broker = Broker(settings, ownership, journal)
        self.clients: dict[int, socket.socket] = {}
        self.sent: set[bytes] = set()
        self.last_number = 0
        for place in range(CLIENTS):
            self.clients[place] = self.connect()

    def connect(self) -> socket.socket:
        """Return the client's end of a new connection."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        self.last_number += 1
        fd = theirs.detach()
        self.broker.switch.adopt(fd, self.last_number)
        self.broker.fast_path.connected(self.last_number, fd)
        return mine

    def step(self, action: int, packet: bytes) -> None:
        """Do one step of the input."""
        place = action & 3
        if action & 64:
            self.clients[place].close()
            self.clients[place] = self.connect()
        else:
            packet += PADDING if action & 16 else b""
            self.send(self.clients[place], packet, MANY if action & 32 else 1)
        if action & 4:
            self.broker.switch.turn(0)
            self.check_balance()
        if action & 8:
            self.receive(self.clients[place])

    def send(self, client: socket.socket, packet: bytes, times: int) -> None:
        """Send a packet, as often as the socket takes it."""
        if packet.startswith(b"MSG ") and b"\0" in packet:
            self.sent.add(packet)
        inner = packet
        with contextlib.suppress(ProtocolError):
            inner = parse_direct(packet)[1]
            self.sent.add(inner)
        with contextlib.suppress(ProtocolError):
            self.sent.add(parse_vouched(inner)[1])
        try:
            for _ in range(times):
                client.send(packet)
        except (BlockingIOError, ConnectionError):
            return

    def receive(self, client: socket.socket) -> list[bytes]:
        """Read what is there, and check each packet."""
        packets: list[bytes] = []
        try:
            while packet := client.recv(1 << 20):
                self.check_reply(packet)
                packets.append(packet)
        except (BlockingIOError, ConnectionError):
            pass
        return packets

    def check_reply(self, packet: bytes) -> None:
        """Check that a packet comes from the server itself, or is a message that a client sent and was allowed to send."""
        if packet not in self.sent:
            assert packet.startswith(b"CMSG "), packet[:80]
            assert b"\0" in packet, packet[:80]
            return
        parsed = parse_packet(packet)
        assert isinstance(parsed, Publish)
        assert self.keyspace.is_publishable(parsed.key), parsed.key

    def rest(self) -> None:
        """Let the switch work until nothing is ready, while the clients read."""
        for _ in range(10_000):
            if not self.broker.switch.turn(0):
                return
            for client in self.clients.values():
                self.receive(client)
        raise AssertionError("the bus does not come to rest")

    def check_balance(self) -> None:
        """Check that every packet that was to reach a client was delivered, waits, was lost, or was given up with its connection."""
        count = self.broker.switch.counters()
        assert (
            count.deliveries
            == count.delivered_packets + count.queued_packets + count.lost_packets + count.replaced_packets + count.abandoned_packets
        ), count

    def check_end(self) -> None:
        """Check that a newcomer is served, and that nothing stays behind of those who go."""
        self.rest()
        newcomer = self.clients[CLIENTS] = self.connect()
        newcomer.send(PING)
        self.broker.switch.turn(0)
        assert self.receive(newcomer) == [PING]
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        self.rest()
        self.check_balance()
        count = self.broker.switch.counters()
        assert self.broker.switch.connections() == []
        assert (count.subscriptions, count.queued_packets, count.queued_bytes) == (0, 0, 0)

    def close(self) -> None:
        """Close everything."""
        for client in self.clients.values():
            client.close()
        self.broker.close()
