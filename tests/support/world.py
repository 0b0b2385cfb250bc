"""A switch with a sink that does as the broker does, and clients on socket pairs: one small bus in one process."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Protocol

from sbusd.config.settings import LimitSettings
from sbusd.daemon import modes, reference, switch
from sbusd.daemon.contract import ConnectionCounters, End, MakeSwitch, Refusal, Switch
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.packets import Control, Subscribe, Unsubscribe, parse_packet

SWITCHES: dict[str, MakeSwitch] = {"compiled": switch.Switch, "reference": reference.Switch}

REFUSALS = tuple(b"CMSG !/bus/error\0%b" % refusal.name.encode() for refusal in Refusal)


@dataclass
class World:
    """One switch, its sink, and its clients by number. All that the sink was told is in ``told``, in order."""

    kind: str
    limits: LimitSettings = field(default_factory=LimitSettings)
    keyspace: KeySpace = field(default_factory=KeySpace)
    told: list[tuple[object, ...]] = field(default_factory=list)
    clients: dict[int, socket.socket] = field(default_factory=dict)
    parties: dict[int, int] = field(default_factory=dict)
    """The uids that tests have given to clients."""

    def __post_init__(self) -> None:
        self.switch: Switch = SWITCHES[self.kind](self, self.keyspace, self.limits, REFUSALS)
        self._next = 1

    # -- the sink

    def connected(self, connection: int, fd: int) -> None:
        self.told.append(("connected", connection))

    def control(self, connection: int, packet: bytes) -> None:
        try:
            parsed = parse_packet(packet)
        except ProtocolError as error:
            self.told.append(("malformed", connection, error.code.name))
            self.switch.disconnect(connection, b"CMSG !/bus/error\0EPROTO")
            return
        if isinstance(parsed, Subscribe):
            self.switch.subscribe(connection, parsed.pattern)
        elif isinstance(parsed, Unsubscribe):
            self.told.append(("unsubscribed", connection, self.switch.unsubscribe(connection, parsed.pattern)))
        elif isinstance(parsed, Control):
            if parsed.key in (b"echo/on", b"echo/off"):
                self.switch.set_echo(connection, parsed.key == b"echo/on")
            elif parsed.key in modes.MODE_KEYS:
                modes.set_mode(self.switch, connection, parsed.key)
            else:
                self.switch.send(connection, packet)

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        self.told.append(("refused", connection, refusal, key, count))

    def lost(self, connection: int, count: int) -> None:
        self.told.append(("lost", connection, count))

    def accept_failed(self, errno: int) -> None:
        self.told.append(("accept failed", errno))

    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None:
        self.told.append(("ended", connection, end, counters))

    # -- the clients

    def connect(self, *patterns: bytes, send_buffer: int | None = None) -> int:
        """Add a client with these subscriptions and return its number.

        *send_buffer* sets SO_SNDBUF on the switch's side: how much the client can leave unread, and the largest packet for it.
        """
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212_992)
        number, self._next = self._next, self._next + 1
        with theirs.dup() as other_end:
            self.switch.adopt(theirs.detach(), number)
            if send_buffer is not None:
                other_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.clients[number] = mine
        for pattern in patterns:
            self.send(number, b"SUB " + pattern)
        self.run()
        return number

    def send(self, number: int, packet: bytes) -> bool:
        """Send a packet as a client; False if the socket does not take it now, or the bus has closed."""
        try:
            self.clients[number].send(packet)
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def receive(self, number: int, at_most: int = 1 << 30) -> list[bytes]:
        """Return what has come for a client, at most so many packets; b"" stands for the end."""
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
        """Let the switch work until nothing is ready."""
        for _ in range(10_000):
            if not self.switch.turn(0):
                return
        raise AssertionError("the switch does not come to rest")

    def drain(self, number: int) -> list[bytes]:
        """Read as a client until nothing more comes."""
        packets: list[bytes] = []
        while more := self.receive(number):
            packets += more
            self.run()
            if not more[-1]:
                break
        return packets

    def hang_up(self, number: int) -> None:
        """Close a client."""
        self.clients.pop(number).close()

    def close(self) -> None:
        """End everything."""
        for client in self.clients.values():
            client.close()
        self.clients.clear()
        self.switch.close()

    def check_balance(self) -> None:
        """Every packet that was to reach a client was delivered, waits, was lost, or was given up with its connection."""
        count = self.switch.counters()
        assert count.deliveries == count.delivered_packets + count.queued_packets + count.lost_packets + count.abandoned_packets


class MakeWorld(Protocol):
    """The fixture ``make_world`` of the daemon's unit tests."""

    def __call__(self, limits: LimitSettings | None = None, keyspace: KeySpace | None = None, of: type[World] = World) -> World:
        """Return a world of the class *of*; when the test ends, its books must balance and its descriptors be closed."""
