"""A switch with a sink that behaves like the broker, and clients on socket pairs, in one process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypedDict, Unpack

from sbus.protocol import controls
from sbus.protocol.errors import ProtocolError
from sbus.protocol.keys import KeySpace
from sbus.protocol.memberships import parse_membership
from sbus.protocol.packets import Control, Subscribe, Unsubscribe, error_packet, is_batch, parse_packet
from sbus.protocol.vouching import parse_loss
from sbus_programs.config.settings import LimitSettings
from sbusd.broker import connection_settings
from sbusd.dataplane.contract import REFUSED_KEY_BYTES, End, PublishRule, Refusal, Sight, Sink, Switch
from sbusd.dataplane.counters import ConnectionCounters
from sbusd.dataplane.switch import Switch as CompiledSwitch
from tests.support.frames import FrameEnd

MakeSwitch = Callable[[Sink, KeySpace, LimitSettings, tuple[bytes, ...]], Switch]
"""How to make a switch: its sink, the rules for keys, its limits, and the packet that a client is sent for each :class:`Refusal`, by
number."""

REFUSALS = tuple(b"CMSG !/bus/error\0%b" % refusal.name.encode() for refusal in Refusal)


def refused(refusal: Refusal, key: bytes) -> bytes:
    """Return the error for a message with *key*."""
    return REFUSALS[refusal] + b"\0" + key[:REFUSED_KEY_BYTES]


LONG_TIMEOUTS = LimitSettings(block_timeout=600.0, progress_timeout=600.0)
"""No recipient blocks for too long, however slow this machine is."""

REST_SECONDS = 60.0
"""The timeout for a switch that never becomes idle. Turns are not counted, because a throttled connection needs many of them."""


def run_until_idle(switch: Switch) -> None:
    """Run *switch* until it is idle."""
    deadline = time.monotonic() + REST_SECONDS
    while switch.turn(0):
        assert time.monotonic() < deadline, "the switch does not become idle"


NO_PARTY = 9
"""The user who is charged for what a client without a user causes."""


class Party(TypedDict, total=False):
    """The arguments of :meth:`Switch.set_party` after the uid."""

    charged: int
    blocks_others: bool
    rules: int
    sight: Sight
    cred: bytes
    may_vouch: bool
    may_deliver: bool


def charged_of(party: tuple[int, Party]) -> int:
    """Return the user that is charged for a client."""
    return party[1].get("charged", party[0])


@dataclass
class SwitchHarness:
    """One switch, its sink, and its clients by number. ``events`` has all calls of the sink, in order."""

    limits: LimitSettings = field(default_factory=LimitSettings)
    keyspace: KeySpace = field(default_factory=KeySpace)
    events: list[tuple[object, ...]] = field(default_factory=list)
    clients: dict[int, socket.socket] = field(default_factory=dict)
    parties: dict[int, tuple[int, Party]] = field(default_factory=dict)
    """The user of each client, and the other arguments of :meth:`set_party`."""
    taps: dict[int, bytes | None] = field(default_factory=dict)
    user_limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    rules: tuple[PublishRule, ...] = ()
    unprivileged: set[int] = field(default_factory=set)
    """Clients that may not know the recipients of a message to a private key."""
    fds: dict[int, int] = field(default_factory=dict)
    """The switch's ends of the clients' sockets."""
    frames: dict[int, FrameEnd] = field(default_factory=dict)
    """The clients whose sockets are streams."""
    send_buffers: dict[int, int] = field(default_factory=dict)
    """SO_SNDBUF of those ends, where a test has set it."""
    make_switch: MakeSwitch = CompiledSwitch

    def __post_init__(self) -> None:
        self.switch: Switch = self.make_switch(self, self.keyspace, self.limits, REFUSALS)
        self._next = 1

    # -- the sink

    def connected(self, connection: int, fd: int) -> None:
        self.events.append(("connected", connection))

    def control(self, connection: int, packet: bytes) -> None:
        try:
            parsed = parse_packet(packet)
        except ProtocolError as error:
            self.events.append(("malformed", connection, error.code.name))
            self.switch.disconnect(connection, b"CMSG !/bus/error\0EPROTO")
            return
        if isinstance(parsed, Subscribe):
            self.switch.subscribe(connection, parsed.pattern)
        elif isinstance(parsed, Unsubscribe):
            self.events.append(("unsubscribed", connection, self.switch.unsubscribe(connection, parsed.pattern)))
        elif isinstance(parsed, Control):
            self.handle_control(connection, parsed, packet)

    def handle_control(self, connection: int, parsed: Control, packet: bytes) -> None:
        if parsed.key in (controls.TAP_ON, controls.TAP_OFF):
            self.taps[connection] = parsed.payload if parsed.key == controls.TAP_ON else None
            self.switch.set_tap(connection, self.taps[connection])
            return
        if parsed.key == controls.GROUP_JOIN:
            self.switch.subscribe(connection, parse_membership(parsed.payload or b""))
            return
        if parsed.key == controls.GROUP_LEAVE:
            self.events.append(("left", connection, self.switch.unsubscribe(connection, parse_membership(parsed.payload or b""))))
            return
        if parsed.key == controls.LOST_FOR:
            count, patterns = parse_loss(parsed.payload or b"")
            uid = self.parties[connection][0] if connection in self.parties else NO_PARTY
            self.events.append(("reported", connection, self.switch.report_loss(patterns, count, uid=uid)))
            return
        if is_batch(packet):
            self.events.append(("malformed batch", connection, packet))
            self.switch.send(connection, b"CMSG !/bus/error\0EINVAL")
            return
        try:
            if not connection_settings.apply(self.switch, connection, parsed):
                self.switch.send(connection, packet)
        except ProtocolError as error:
            self.switch.send(connection, error_packet(error.code, error.words))

    def configure(self, connection: int, **changes: Any) -> None:
        """Change settings of a client."""
        self.switch.configure(connection, replace(self.switch.settings(connection), **changes))

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        self.events.append(("refused", connection, refusal, key, count))

    def refusals(self, connection: int) -> dict[Refusal, tuple[bytes, int]]:
        """Return the first key, and the number of packets, that were reported for each reason. Each turn has a report of its own, and
        a turn ends when its time is over."""
        found: dict[Refusal, tuple[bytes, int]] = {}
        for event in self.events:
            match event:
                case ("refused", number, Refusal() as refusal, bytes(key), int(count)) if number == connection:
                    first, earlier = found.get(refusal, (key, 0))
                    found[refusal] = (first, earlier + count)
        return found

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        assert key.startswith(b"!/cred/")
        return connection not in self.unprivileged

    def lost(self, connection: int, count: int) -> None:
        self.events.append(("lost", connection, count))

    def accept_failed(self, errno: int) -> None:
        self.events.append(("accept failed", errno))

    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None:
        self.events.append(("ended", connection, end, counters))
        party = self.parties.pop(connection, None)
        if party is not None and not any(charged_of(party) == charged_of(each) for each in self.parties.values()):
            # A user without connections has no limits.
            self.user_limits.pop(charged_of(party), None)

    def closed(self, connection: int) -> None:
        self.events.append(("closed", connection))

    # -- the clients

    def connect(self, *patterns: bytes, send_buffer: int | None = None, is_stream: bool = False) -> int:
        """Add a client with these subscriptions and return its number.

        *send_buffer* sets SO_SNDBUF on the switch's side: how much the client can leave unread, and the largest packet for it.
        *is_stream*: its socket is a stream, and packets are frames there.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if is_stream else socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
        number, self._next = self._next, self._next + 1
        self.fds[number] = theirs.fileno()
        self.switch.adopt(theirs.detach(), number)
        if send_buffer is not None:
            self.send_buffers[number] = send_buffer
            self.set_send_buffer(number)
        self.clients[number] = mine
        if is_stream:
            self.frames[number] = FrameEnd(mine)
        for pattern in patterns:
            self.send(number, b"SUB " + pattern)
        self.run()
        return number

    def set_send_buffer(self, number: int) -> None:
        """Set SO_SNDBUF of the switch's end again: a switch that takes over a connection sets its own."""
        if number in self.send_buffers:
            with socket.socket(fileno=os.dup(self.fds[number])) as end:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffers[number])

    def send(self, number: int, packet: bytes) -> bool:
        """Send a packet as a client; return False if the socket is full, or the bus has closed it."""
        try:
            if number in self.frames:
                self.frames[number].send(packet)
            else:
                self.clients[number].send(packet)
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def receive(self, number: int, at_most: int = 1 << 30) -> list[bytes]:
        """Return the packets that a client has received, at most *at_most*; b"" means that the bus has closed the connection."""
        if number in self.frames:
            return self.frames[number].receive(at_most)
        packets: list[bytes] = []
        while len(packets) < at_most:
            try:
                packet = self.clients[number].recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packets.append(b"reset")
                continue
            packets.append(packet)
            if not packet:
                break
        return packets

    def run(self) -> None:
        """Run the switch until it is idle."""
        run_until_idle(self.switch)

    def drain(self, number: int) -> list[bytes]:
        """Read as a client until the switch is idle and the socket empty."""
        packets: list[bytes] = []
        while True:
            before = self.frames[number].partial if number in self.frames else b""
            more = self.receive(number)
            packets += more
            self.run()
            if (not more and (number not in self.frames or before == self.frames[number].partial)) or (more and not more[-1]):
                return packets

    def hang_up(self, number: int) -> None:
        """Close a client."""
        self.clients.pop(number).close()

    def hand_over(self) -> None:
        """Hand over to a new switch as a restart does: it gets duplicates of the sockets, and the exported state of the old one."""
        before = self.switch
        live = [(number, os.dup(self.fds[number])) for number in before.connections()]
        kept = {number: (before.settings(number), before.progress(number), before.patterns(number)) for number, _ in live}
        (packets, queues), tally, following = before.queues(), before.tally(), before.next_connection()
        before.close(keeps_connections=True)
        self.switch = self.make_switch(self, self.keyspace, self.limits, REFUSALS)
        self.switch.set_publish_rules(self.rules)
        for number, fd in live:
            settings, progress, patterns = kept[number]
            self.switch.adopt(fd, number)
            self.fds[number] = fd
            self.set_send_buffer(number)
            if number in self.parties:
                uid, party = self.parties[number]
                self.switch.set_party(number, uid, **party)
            self.switch.set_tap(number, self.taps.get(number))
            self.switch.restore(number, settings, progress)
            for pattern, count in patterns.items():
                for _ in range(count):
                    self.switch.subscribe(number, pattern)
        for uid, (most, size) in self.user_limits.items():
            self.switch.set_user_limits(uid, most, size)
        self.switch.restore_all(packets, queues, tally, following)

    def set_party(self, number: int, uid: int, **party: Unpack[Party]) -> None:
        """Set the user of a client."""
        self.parties[number] = (uid, party)
        self.switch.set_party(number, uid, **party)

    def set_user_limits(self, uid: int, packets: int, size: int) -> None:
        """Set the queue limits of a user."""
        self.user_limits[uid] = (packets, size)
        self.switch.set_user_limits(uid, packets, size)

    def set_publish_rules(self, rules: tuple[PublishRule, ...]) -> None:
        """Set the rules for MSG."""
        self.rules = rules
        self.switch.set_publish_rules(rules)

    def close(self) -> None:
        """End everything."""
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        self.switch.close()

    def check_balance(self) -> None:
        """Every packet that was to reach a client was delivered, waits, was lost, or was given up with its connection."""
        count = self.switch.counters()
        fates = (count.delivered_packets, count.queued_packets, count.lost_packets, count.replaced_packets, count.abandoned_packets)
        assert count.deliveries == sum(fates)


class MakeHarness(Protocol):
    """The fixture ``make_harness`` of the daemon's unit tests."""

    def __call__(
        self, limits: LimitSettings | None = None, keyspace: KeySpace | None = None, of: type[SwitchHarness] = SwitchHarness
    ) -> SwitchHarness:
        """Return a harness of the class *of*; when the test ends, its books must balance and its descriptors be closed."""


class RecordingHarness(SwitchHarness):
    """A switch whose sink only records its calls."""

    def control(self, connection: int, packet: bytes) -> None:
        """Record the packet."""
        self.events.append((connection, packet))


def send_all(harness: SwitchHarness, sender: int, *packets: bytes) -> None:
    """Send packets, and let the switch handle them."""
    for packet in packets:
        assert harness.send(sender, packet)
    harness.run()
