"""The life of a small bus, always the same: what each client must get is known, whatever call of the switch fails.

The rule that is checked: a client that is still connected has got every packet meant for it, in order, but for gaps that
``!/bus/lost`` counts exactly, in their place; one whose connection has ended has got such a sequence up to some point. What was
meant for whom follows from what the switch says that it read of each sender. Each step comes to rest before the next, so the
order of packets is one order for all.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import is_batch, join_batch, parse_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import Order, Refusal, SoftMode
from sbusd.dataplane.counters import ConnectionCounters
from tests.faults.shim import Fault, Shim
from tests.support.switch_harness import REFUSALS, SwitchHarness
from tests.support.wire import message

LIMITS = LimitSettings(queue_packets=8, queue_bytes=1_000_000, turn_time=10.0, block_timeout=600.0, progress_timeout=600.0)
"""Time enough for every turn, so that which packets are read in one does not hang on how fast this machine is."""
UID = 1_000
"""The user of the publisher and of the client that blocks it; the other clients have no user, and lose packets."""

QUIET_TURNS = 4
"""Turns with nothing ready in a row that mean rest: more than a fault repeats, for an interrupted wait is quiet too."""

EXPECTED_ENDS = {"half", "leaver", "deserter", "babbler", "namer", "tapper"}
"""Clients that end in the course of the scenario."""

BRAKE = b"CMSG blocking/soft/block"
PICK = b"CMSG order/random"
LOSS = b"CMSG !/bus/lost\0"
BAD_BATCH = b"CMSG !/bus/error\0EINVAL"
LAST_WORDS = b"CMSG !/bus/error\0EPROTO"

# The scenario is played some hundred times: a buffer for each packet and each match of the few patterns took most of the time.
_received = memoryview(bytearray(1 << 20))
_matches = functools.cache(KeySpace().matches)


class ExpectedPacket(NamedTuple):
    """A packet that a client must receive if the switch has read its cause."""

    packet: bytes
    cause: Client
    position: int
    """Which of the packets of *cause* it was."""


@dataclass(eq=False)
class Client:
    """One client: its socket, and what it has sent and received."""

    name: str
    socket: socket.socket
    number: int | None = None
    """Its number on the bus, or None if it was never let in."""
    sent: int = 0
    patterns: list[bytes] = field(default_factory=list)
    meant: list[ExpectedPacket] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    is_ordered: bool = True
    """Whether its queue keeps the order of packets."""
    wants_senders: bool = False
    has_tap: bool = False
    """Whether it has a tap; its ``received`` omits the lines of the tap."""


class FaultHarness(SwitchHarness):
    """A switch whose system calls go through the shim, and whose clients connect to a listening socket."""

    def __init__(self, shim: Shim) -> None:
        self.shim = shim
        self.fds: dict[int, int] = {}
        self.ends: dict[int, ConnectionCounters] = {}
        with shim.watching():
            super().__init__(LIMITS)

    def connected(self, connection: int, fd: int) -> None:
        super().connected(connection, fd)
        self.fds[connection] = fd

    def control(self, connection: int, packet: bytes) -> None:
        if packet == BRAKE:
            self.switch.set_party(connection, UID)
            self.configure(connection, soft=SoftMode.BLOCK)
        elif packet == PICK:
            self.configure(connection, order=Order.RANDOM)
        else:
            super().control(connection, packet)

    def ended(self, connection: int, end: object, counters: ConnectionCounters) -> None:
        self.events.append(("ended", connection, end, counters))
        assert connection not in self.ends, f"connection {connection} ended twice"
        self.ends[connection] = counters

    def run(self) -> None:
        quiet = turns = 0
        with self.shim.watching():
            while quiet < QUIET_TURNS:
                turns += 1
                assert turns < 2_000, "the switch does not come to rest"
                try:
                    ready = self.switch.turn(0)
                except OSError as error:
                    # The one call whose failure the switch cannot settle by itself: it says so, and must stay whole.
                    if "epoll_wait" not in str(error):
                        raise
                    ready = 0
                quiet = 0 if ready else quiet + 1


class Scenario:
    """Runs all steps once; :meth:`check` verifies the result."""

    def __init__(self, shim: Shim, listener: socket.socket) -> None:
        self.listener = listener
        self.harness = FaultHarness(shim)
        try:
            with shim.watching():
                self.harness.switch.listen(listener.fileno())
        except OSError:
            self.harness.close()
            raise
        self.all: dict[str, Client] = {}

    # -- what clients do

    def connect(self, *names: str, send_buffer: int | None = None) -> None:
        """Let clients come, all at once; one that is turned away has no number."""
        for name in names:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 425_984)
            before = set(self.harness.fds)
            sock.connect(self.listener.getsockname())
            self.harness.run()
            fresh = set(self.harness.fds) - before
            assert len(fresh) <= 1
            self.all[name] = Client(name, sock, next(iter(fresh), None))
            for number in fresh:
                self._shrink(number, send_buffer)

    def _shrink(self, number: int, send_buffer: int | None) -> None:
        """Let little wait in a connection's socket."""
        if send_buffer is not None:
            with socket.socket(fileno=os.dup(self.harness.fds[number])) as other_end:
                other_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)

    def send(self, name: str, packet: bytes) -> int | None:
        """Send a packet and return its index, or None if the bus has closed."""
        client = self.all[name]
        try:
            client.socket.send(packet)
        except ConnectionError:
            return None
        client.sent += 1
        return client.sent - 1

    def subscribe(self, name: str, *patterns: bytes) -> None:
        """Subscribe, and wait for rest."""
        for pattern in patterns:
            if self.send(name, b"SUB " + pattern) is not None:
                self.all[name].patterns.append(pattern)
        self.harness.run()

    def publish(self, name: str, key: bytes, count: int, size: int = 0) -> None:
        """Publish *count* messages in one go, note whom they are meant for, and wait for rest."""
        sender = self.all[name]
        for _ in range(count):
            packet = message(key, b"%b %d %b" % (name.encode(), sender.sent, bytes(size)))
            index = self.send(name, packet)
            if index is not None:
                self._mean(key, ExpectedPacket(packet, sender, index))
        self.harness.run()

    def publish_batch(self, name: str, key: bytes, count: int, size: int = 0, *, fault: bytes = b"") -> None:
        """Publish *count* messages in a batch, with a *fault* behind them if there is one, and wait for rest."""
        sender = self.all[name]
        packets = [message(key, b"%b %d %b" % (name.encode(), sender.sent + place, bytes(size))) for place in range(count)]
        first = self.send(name, join_batch(packets) + fault)
        if first is not None:
            sender.sent = first + count + bool(fault)
            for place, packet in enumerate(packets):
                self._mean(key, ExpectedPacket(packet, sender, first + place))
            if fault:
                sender.meant.append(ExpectedPacket(BAD_BATCH, sender, first + count))
        self.harness.run()

    def _mean(self, key: bytes, meant: ExpectedPacket) -> None:
        """Note a message for those that have subscribed to it."""
        for client in self.all.values():
            if client.wants_senders:
                head = b"CMSG !/from/%d/\0" % (meant.cause.number or 0)
                client.meant.append(meant._replace(packet=head + meant.packet))
            elif client.has_tap or any(_matches(pattern, key) for pattern in client.patterns):
                client.meant.append(meant)

    def ask(self, name: str, packet: bytes, answer: bytes) -> None:
        """Send a packet that the bus answers."""
        index = self.send(name, packet)
        if index is not None:
            self.all[name].meant.append(ExpectedPacket(answer, self.all[name], index))

    def read(self, *names: str) -> None:
        """Read until nothing more comes."""
        for name in names:
            client = self.all[name]
            while client.socket.fileno() >= 0 and (packets := self._read_once(client.socket)):
                client.received += [inner for packet in packets for inner in (parse_batch(packet) if is_batch(packet) else [packet])]
                self.harness.run()
                if packets[-1] in {b"", b"reset"}:
                    break

    @staticmethod
    def _read_once(sock: socket.socket) -> list[bytes]:
        """Return the packets received so far; b"" means that the connection has been closed."""
        packets: list[bytes] = []
        while not packets or packets[-1] not in {b"", b"reset"}:
            try:
                packets.append(bytes(_received[: sock.recv_into(_received)]))
            except BlockingIOError:
                break
            except ConnectionResetError:
                packets.append(b"reset")
        return packets

    # -- the life

    def run_all(self) -> None:
        """Run all steps, then wait until the switch is idle."""
        self.connect("publisher", "one", "two", "three")
        self.connect("slow", send_buffer=4_608)
        self.subscribe("one", b"t/*", b"t/a")
        self.subscribe("two", b"t/*", b"big")
        self.subscribe("three", b"*")
        self.subscribe("slow", b"t/a", b"big")
        self._fan_out_to_a_slow_reader()
        self._batches()
        self._large_packets()
        self._modes()
        self._control_packets()
        self._witnesses()
        self._ends()
        self.publish("publisher", b"t/a", 3)
        self.read(*self.all)

    def _fan_out_to_a_slow_reader(self) -> None:
        """One falls behind until packets are lost, reads, and falls behind again."""
        for _ in range(2):
            for count in (1, 7, 12, 20):
                self.publish("publisher", b"t/a", count)
                self.read("one", "two", "three")
            self.publish("one", b"t/b", 2)
            self.read("slow")
        self.read("one", "two", "three")

    def _batches(self) -> None:
        """One wants batches and falls behind, and one sends some: longer ones than are handled in a turn, and a malformed one."""
        self.connect("bundler", send_buffer=4_608)
        self.send("bundler", b"CMSG batch/on")
        self.subscribe("bundler", b"t/d")
        self.publish_batch("one", b"t/d", 5)
        self.read("bundler")
        for count in (70, 3):
            self.publish_batch("publisher", b"t/d", count, 50, fault=b"\1" if count == 3 else b"")
            self.read("one", "two", "three", "publisher")
        self.read("bundler")

    def _large_packets(self) -> None:
        """Packets of which a socket takes one or two while others wait, and which another socket never takes."""
        for size in (100_000, 300_000):
            self.publish("publisher", b"big", 2, size)
            self.publish("publisher", b"t/a", 2)
            self.publish("three", b"big", 1, size)
            self.read("two", "three", "slow", "one", "publisher")

    def _modes(self) -> None:
        """One reader blocks its publisher, and another has a queue in an order of its own."""
        self.connect("brake", "picker", send_buffer=4_608)
        publisher = self.all["publisher"].number
        if publisher in self.harness.switch.connections():
            self.harness.switch.set_party(publisher, UID)
        self.send("brake", BRAKE)
        self.send("picker", PICK)
        self.all["picker"].is_ordered = False
        self.subscribe("brake", b"b")
        self.subscribe("picker", b"p")
        self.publish("publisher", b"b", 40)
        self.publish("publisher", b"p", 4)
        self.read("brake", "three")
        for _ in range(2):
            self.publish("publisher", b"p", 18)
            self.read("picker", "three")

    def _control_packets(self) -> None:
        """Between messages, and messages that are refused."""
        self.connect("asker")
        for token in (b"1", b"2"):
            self.ask("asker", b"CMSG ping\0" + token, b"CMSG ping\0" + token)
        self.publish("asker", b"t/a", 2)
        self.ask("asker", b"CMSG ping\0003", b"CMSG ping\0003")
        self.ask("asker", message(b"!/bus/x", b"forged"), REFUSALS[Refusal.RESERVED] + b"\0!/bus/x")
        self.harness.run()
        self.send("asker", b"SUB t/c")
        self.send("asker", b"UNSUB t/c")
        self.publish("publisher", b"t/c", 1)
        self.read("asker", "one", "two", "three", "slow")

    def _witnesses(self) -> None:
        """One who wants senders and one who taps fall behind, read, and leave with more waiting."""
        self.connect("namer", "tapper", send_buffer=4_608)
        for name, command in (("namer", b"CMSG sender/on"), ("tapper", b"CMSG tap/on\0")):
            self.send(name, command)
        self.subscribe("namer", b"*")
        self.all["namer"].wants_senders = self.all["tapper"].has_tap = True
        for count in (1, 6, 12):
            self.publish("publisher", b"w", count)
            self.publish("one", b"w", 1, 300_000)
            self.read("three")
        self.read("namer", "tapper")
        self.publish("publisher", b"w", 8)
        self.read("three")
        self.ask("asker", b"CMSG receipt/undeliverable\0t", b"CMSG !/bus/receipt\0t\x000")
        for name in ("namer", "tapper"):
            self._leave(name, 0)
            self.all[name].wants_senders = self.all[name].has_tap = False
        self.send("asker", message(b"!/conn/999/x"))
        self.harness.run()
        self.read("asker")

    def _ends(self) -> None:
        """A client shuts down its sending side, one leaves at once, one leaves what it got unread, and one is thrown out."""
        self.connect("half", "leaver", "deserter", "babbler")
        self.subscribe("half", b"t/b")
        self.subscribe("deserter", b"t/b")
        with contextlib.suppress(OSError):
            self.all["half"].socket.shutdown(socket.SHUT_WR)
        self.publish("publisher", b"t/b", 2)
        self.read("half", "one", "two", "three")
        self._leave("half", 0)
        self._leave("leaver", 3)
        self._leave("deserter", 2)
        self.ask("babbler", b"what?", LAST_WORDS)
        self.publish("babbler", b"t/a", 0)
        self.read("babbler", "one", "two", "three", "slow")

    def _leave(self, name: str, count: int) -> None:
        """Close a client right behind its last messages."""
        sender = self.all[name]
        for _ in range(count):
            packet = message(b"t/b", b"%b %d" % (name.encode(), sender.sent))
            index = self.send(name, packet)
            if index is not None:
                self._mean(b"t/b", ExpectedPacket(packet, sender, index))
        sender.socket.close()
        self.harness.run()

    # -- the verdict

    def check(self, faults: tuple[Fault, ...], may_end: int) -> None:
        """Fail unless every client has got what it must, the books balance, and the bus still works.

        *may_end* is how many clients the *faults* may cost their connections.
        """
        alive = {client.name for client in self.all.values() if client.number in self.harness.switch.connections()}
        ended = set(self.all) - alive
        assert not alive & EXPECTED_ENDS, alive
        assert len(ended - EXPECTED_ENDS) <= may_end, f"{ended - EXPECTED_ENDS} ended for nothing: {faults}"
        malformed = [line[1] for line in self.harness.events if line[0] == "malformed"]
        assert malformed in ([], [self.all["babbler"].number]), malformed
        for client in self.all.values():
            self._check_client(client, client.name in alive)
        self._check_books(alive)

    def _read_of(self, client: Client) -> int:
        """Return how many packets of a client the switch has read."""
        if client.number is None:
            return 0
        if client.number in self.harness.ends:
            return self.harness.ends[client.number].received_packets
        return self.harness.switch.connection_counters(client.number).received_packets

    def _check_client(self, client: Client, is_alive: bool) -> None:
        """Compare what a client got with what it must."""
        if is_alive:
            assert self._read_of(client) == client.sent, f"{client.name}: not all that it sent was read"
        meant = [entry.packet for entry in client.meant if entry.position < self._read_of(entry.cause)]
        position = lost = 0
        for reported in client.received:
            packet = reported.partition(b"}\n")[2] if reported.startswith(b"CMSG !/tap\0") else reported
            if packet.startswith(LOSS):
                position += int(packet[len(LOSS) :])
                lost += int(packet[len(LOSS) :])
            elif packet in {b"", b"reset", REFUSALS[Refusal.NO_DESCRIPTOR]}:
                assert not is_alive, f"{client.name}: {packet!r} on a connection that lives"
            elif not client.is_ordered:
                assert packet in meant, f"{client.name}: {packet[:60]!r} was not meant for it, or came twice"
                meant.remove(packet)
            else:
                assert position < len(meant), f"{client.name}: {packet[:60]!r} was not meant for it"
                assert packet == meant[position], f"{client.name}: {packet[:60]!r} instead of {meant[position][:60]!r}"
                position += 1
        assert position <= len(meant), f"{client.name}: more losses were reported than occurred"
        if is_alive:
            assert position == len(meant), (
                f"{client.name}: {len(meant) - position} packets are missing, the first: {meant[position][:60]!r}"
            )
            assert client.number is not None
            assert lost == self.harness.switch.connection_counters(client.number).lost_packets
            assert lost == sum(int(str(line[2])) for line in self.harness.events if line[:2] == ("lost", client.number))

    def _check_books(self, alive: set[str]) -> None:
        """Compare the switch's counters with what happened."""
        self.harness.check_balance()
        count = self.harness.switch.counters()
        assert count.queued_packets == count.queued_bytes == 0
        assert count.connections == len(alive) == len(self.harness.fds) - len(self.harness.ends)
        assert count.accepted == len(self.harness.fds)
        assert count.accept_failures == sum(line[0] == "accept failed" for line in self.harness.events)
        assert count.subscriptions == sum(len(client.patterns) for client in self.all.values() if client.name in alive)

    def check_still_works(self) -> None:
        """Two new clients, one message."""
        self.connect("fresh reader", "fresh publisher")
        self.subscribe("fresh reader", b"fresh")
        self.publish("fresh publisher", b"fresh", 3)
        self.read("fresh reader")
        fresh = self.all["fresh reader"]
        assert fresh.received == [entry.packet for entry in fresh.meant]
        assert len(fresh.received) == 3

    def close(self) -> None:
        """End everything."""
        for client in self.all.values():
            client.socket.close()
        self.harness.close()


@contextlib.contextmanager
def open_listener() -> Iterator[socket.socket]:
    """Give a listening socket with an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"")
        listener.listen(20)
        listener.setblocking(False)
        yield listener


def play(shim: Shim, faults: tuple[Fault, ...], may_end: int) -> dict[str, int]:
    """Run the scenario with *faults*, check everything, and return how often each call was made.

    The first fault must happen; the others may, as the first changes what follows.
    """
    before = os.listdir("/proc/self/fd")
    shim.arm(faults)
    with open_listener() as listener:
        scenario = _start(shim, listener)
        if scenario is None:
            # What is watched from the start are the sockets that are closed, and the listener.
            assert faults[0].first <= {"epoll_create1": 1, "open": 1, "epoll_ctl": 2}[faults[0].call]
            counts = shim.counts()
        else:
            counts = _live(shim, scenario, faults, may_end)
    assert len(os.listdir("/proc/self/fd")) == len(before), "descriptors leak"
    return counts


def _start(shim: Shim, listener: socket.socket) -> Scenario | None:
    """Return a scenario, or None if the switch could not start, which it must say in one error."""
    try:
        return Scenario(shim, listener)
    except OSError as error:
        if "the switch cannot start" not in str(error) and "epoll_ctl" not in str(error):
            raise
        return None


def _live(shim: Shim, scenario: Scenario, faults: tuple[Fault, ...], may_end: int) -> dict[str, int]:
    """Live through *scenario* and check everything."""
    try:
        scenario.run_all()
        counts = shim.counts()
        assert not faults or shim.done(0) > 0, f"{faults[0]} never happened"
        shim.arm(())
        scenario.check(faults, may_end)
        scenario.check_still_works()
    finally:
        scenario.close()
    return counts
