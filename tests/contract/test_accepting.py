"""Accepting connections, also when there is no descriptor left, and being interrupted by signals."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

import pytest

from sbusd.dataplane.closer import Closer
from sbusd.dataplane.contract import Refusal
from tests.support.wire import message
from tests.support.world import REFUSALS, MakeWorld, World

PAUSE_SECONDS_MOST = 60.0


@dataclass
class Door:
    """A listening socket, and clients that come through it."""

    world: World
    listener: socket.socket
    clients: list[socket.socket] = field(default_factory=list)

    def connect(self) -> socket.socket:
        """Connect a client; the switch has not accepted it yet."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.setblocking(False)
        client.connect(self.listener.getsockname())
        self.clients.append(client)
        return client


@contextlib.contextmanager
def open_door(world: World) -> Iterator[Door]:
    """Let *world* listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"")
        listener.listen(100)
        listener.setblocking(False)
        world.switch.listen(listener.fileno())
        door = Door(world, listener)
        try:
            yield door
        finally:
            for client in door.clients:
                client.close()
            world.run()


@pytest.fixture
def door(world: World) -> Iterator[Door]:
    """A door to a world with the default limits."""
    with open_door(world) as door:
        yield door


@contextlib.contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Set the limit so that this process can open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(world: World) -> list[object]:
    """Return the numbers that the sink was told of."""
    return [told[1] for told in world.told if told[0] == "connected"]


def test_connections_are_numbered_as_they_come_and_no_number_comes_twice(door: Door) -> None:
    world = door.world
    for _ in range(3):
        door.connect()
    world.run()
    door.clients.pop(0).close()
    world.run()
    door.connect()
    world.run()
    assert connected(world) == [1, 2, 3, 4]
    assert world.switch.connections() == [2, 3, 4]
    assert world.switch.counters().accepted == 4


def test_numbers_go_on_behind_the_highest_that_was_adopted(door: Door) -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.clients.append(mine)
    door.world.switch.adopt(theirs.detach(), 41)
    door.connect()
    door.world.run()
    assert door.world.switch.connections() == [41, 42]


def test_a_flood_of_connects_does_not_keep_traffic_waiting(door: Door) -> None:
    world = door.world
    reader, writer = world.connect(b"a"), world.connect()
    for _ in range(60):
        door.connect()
    world.send(writer, message(b"a", b"x"))
    turns = 0
    while not (received := world.receive(reader)):
        world.switch.turn(0)
        turns += 1
    assert received == [message(b"a", b"x")]
    assert turns <= 2
    assert world.switch.counters().accepted <= 32
    world.run()
    assert world.switch.counters().accepted == 60


def test_who_comes_when_no_descriptor_is_left_is_told_and_others_go_on(door: Door) -> None:
    world = door.world
    first, second = door.connect(), door.connect()
    world.run()
    late = door.connect()
    with no_descriptors_left():
        world.run()
        assert late.recv(1_000) == REFUSALS[Refusal.NO_DESCRIPTOR]
        assert late.recv(1_000) == b""
        assert ("accept failed", errno.EMFILE) in world.told
        first.send(b"SUB a")
        second.send(message(b"a", b"still here"))
        world.run()
        world.run()
        assert first.recv(1_000) == message(b"a", b"still here")
    assert world.switch.counters().accept_failures == 1
    assert connected(world) == [1, 2]


def test_the_spare_descriptor_serves_again_and_again(door: Door) -> None:
    world = door.world
    door.connect()
    world.run()
    late = [door.connect() for _ in range(40)]
    for client in late:
        # Those who have sent already must not find ECONNRESET in place of the words.
        client.send(b"SUB a")
    with no_descriptors_left():
        world.run()
    assert [client.recv(1_000) for client in late] == [REFUSALS[Refusal.NO_DESCRIPTOR]] * 40
    assert world.switch.counters().accept_failures == 40


def test_a_descriptor_that_becomes_free_lets_the_next_one_in(door: Door) -> None:
    world = door.world
    door.connect()
    world.run()
    next_one = door.connect()
    with no_descriptors_left():
        door.clients.pop(0).close()
        world.switch.turn(0)
        world.run()
        next_one.send(b"CMSG ping\0x")
        world.run()
        assert next_one.recv(1_000) == b"CMSG ping\0x"


@dataclass
class Thief(World):
    """A sink that takes the last descriptor while the switch has it free."""

    stolen: list[int] = field(default_factory=list)

    def accept_failed(self, errno: int) -> None:
        super().accept_failed(errno)
        with contextlib.suppress(OSError):
            self.stolen.append(os.open("/dev/null", os.O_RDONLY))


def test_without_even_the_spare_descriptor_accepting_pauses_until_one_is_free(make_world: MakeWorld) -> None:
    world = make_world(of=Thief)
    assert isinstance(world, Thief)
    with open_door(world) as door:
        door.connect()
        world.run()
        waiting = [door.connect() for _ in range(3)]
        with no_descriptors_left():
            for _ in range(10):
                world.switch.turn(0)
            assert len(world.stolen) == 1
            os.close(world.stolen.pop())
            door.clients.pop(0).close()
            world.switch.turn(0)
        # The stolen one has become the spare again or serves a client: nobody waits for ever.
        for _ in range(3):
            world.run()
        for client in waiting:
            with contextlib.suppress(BrokenPipeError):
                client.send(b"CMSG ping\0x")
        world.run()
        answers = [client.recv(1_000) for client in waiting]
        assert set(answers) <= {REFUSALS[Refusal.NO_DESCRIPTOR], b"CMSG ping\0x"}
        assert answers.count(b"CMSG ping\0x") >= 1
        for fd in world.stolen:
            os.close(fd)


def test_while_too_many_sockets_wait_to_be_closed_nobody_is_accepted(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers can send what sleeps in close(2) faster than threads close it. Traffic goes on, and does not keep the pause from ending."""
    old = door.world.connect()
    with monkeypatch.context() as patch:
        patch.setattr(Closer, "is_crowded", True)
        door.connect()
        door.world.switch.turn(0)
        assert door.world.told[-1] == ("accept failed", errno.EBUSY)
    end = time.monotonic() + PAUSE_SECONDS_MOST
    while not any(told[0] == "connected" for told in door.world.told):
        assert time.monotonic() < end
        door.world.send(old, b"MSG nobody\0")
        door.world.switch.turn(0)


def test_signals_that_interrupt_lose_nothing(world: World) -> None:
    arrived = 0

    def count(_number: int, _frame: FrameType | None) -> None:
        nonlocal arrived
        arrived += 1

    listener, sender = world.connect(b"a"), world.connect()
    previous = signal.signal(signal.SIGALRM, count)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        received: list[bytes] = []
        for number in range(2_000):
            assert world.send(sender, message(b"a", b"%d" % number))
            world.run()
            received += world.receive(listener)
        while arrived < 5:
            world.switch.turn(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert received == [message(b"a", b"%d" % number) for number in range(2_000)]
