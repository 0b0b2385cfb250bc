"""Acceptance of connections, also without free descriptors, and interruption by signals."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sbusd.dataplane import socket_closer
from sbusd.dataplane.contract import Refusal
from tests.support.alarms import alarm
from tests.support.lingering import pass_on
from tests.support.switch_harness import REFUSALS, MakeHarness, SwitchHarness
from tests.support.wire import message

PAUSE_SECONDS_MOST = 60.0


@dataclass
class ListeningHarness:
    """A listening socket, and the clients that connect to it."""

    harness: SwitchHarness
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
def open_listener(harness: SwitchHarness) -> Iterator[ListeningHarness]:
    """Let *harness* listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"")
        listener.listen(100)
        listener.setblocking(False)
        harness.switch.listen(listener.fileno())
        listening = ListeningHarness(harness, listener)
        try:
            yield listening
        finally:
            for client in listening.clients:
                client.close()
            harness.run()


@pytest.fixture
def listening(harness: SwitchHarness) -> Iterator[ListeningHarness]:
    """A door to a harness with the default limits."""
    with open_listener(harness) as listening:
        yield listening


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


def connected(harness: SwitchHarness) -> list[object]:
    """Return the numbers of the connections reported to the sink."""
    return [event[1] for event in harness.events if event[0] == "connected"]


def test_connections_are_numbered_in_order_and_numbers_are_never_reused(listening: ListeningHarness) -> None:
    harness = listening.harness
    for _ in range(3):
        listening.connect()
    harness.run()
    listening.clients.pop(0).close()
    harness.run()
    listening.connect()
    harness.run()
    assert connected(harness) == [1, 2, 3, 4]
    assert harness.switch.connections() == [2, 3, 4]
    assert harness.switch.counters().accepted == 4


def test_numbers_go_on_behind_the_highest_that_was_adopted(listening: ListeningHarness) -> None:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.clients.append(mine)
    listening.harness.switch.adopt(theirs.detach(), 41)
    listening.connect()
    listening.harness.run()
    assert listening.harness.switch.connections() == [41, 42]


def test_a_flood_of_connects_does_not_keep_traffic_waiting(listening: ListeningHarness) -> None:
    harness = listening.harness
    reader, writer = harness.connect(b"a"), harness.connect()
    for _ in range(60):
        listening.connect()
    harness.send(writer, message(b"a", b"x"))
    turns = 0
    while not (received := harness.receive(reader)):
        harness.switch.turn(0)
        turns += 1
    assert received == [message(b"a", b"x")]
    assert turns <= 2
    assert harness.switch.counters().accepted <= 32
    harness.run()
    assert harness.switch.counters().accepted == 60


def test_connections_without_free_descriptors_are_rejected_with_an_error(listening: ListeningHarness) -> None:
    harness = listening.harness
    first, second = listening.connect(), listening.connect()
    harness.run()
    late = listening.connect()
    with no_descriptors_left():
        harness.run()
        assert late.recv(1_000) == REFUSALS[Refusal.NO_DESCRIPTOR]
        assert late.recv(1_000) == b""
        assert ("accept failed", errno.EMFILE) in harness.events
        first.send(b"SUB a")
        second.send(message(b"a", b"still here"))
        harness.run()
        harness.run()
        assert first.recv(1_000) == message(b"a", b"still here")
    assert harness.switch.counters().accept_failures == 1
    assert connected(harness) == [1, 2]


def test_the_spare_descriptor_serves_again_and_again(listening: ListeningHarness) -> None:
    harness = listening.harness
    listening.connect()
    harness.run()
    late = [listening.connect() for _ in range(40)]
    for client in late:
        # Those who have sent already must not find ECONNRESET in place of the words.
        client.send(b"SUB a")
    with no_descriptors_left():
        harness.run()
    assert [client.recv(1_000) for client in late] == [REFUSALS[Refusal.NO_DESCRIPTOR]] * 40
    assert harness.switch.counters().accept_failures == 40


def test_a_descriptor_that_becomes_free_lets_the_next_one_in(listening: ListeningHarness) -> None:
    harness = listening.harness
    listening.connect()
    harness.run()
    next_one = listening.connect()
    with no_descriptors_left():
        listening.clients.pop(0).close()
        harness.switch.turn(0)
        harness.run()
        next_one.send(b"CMSG ping\0x")
        harness.run()
        assert next_one.recv(1_000) == b"CMSG ping\0x"


@dataclass
class DescriptorTaker(SwitchHarness):
    """A sink that takes the last descriptor while the switch has it free."""

    stolen: list[int] = field(default_factory=list)

    def accept_failed(self, errno: int) -> None:
        super().accept_failed(errno)
        with contextlib.suppress(OSError):
            self.stolen.append(os.open("/dev/null", os.O_RDONLY))


def test_without_even_the_spare_descriptor_accepting_pauses_until_one_is_free(make_harness: MakeHarness) -> None:
    harness = make_harness(of=DescriptorTaker)
    assert isinstance(harness, DescriptorTaker)
    with open_listener(harness) as listening:
        listening.connect()
        harness.run()
        waiting = [listening.connect() for _ in range(3)]
        with no_descriptors_left():
            for _ in range(10):
                harness.switch.turn(0)
            assert len(harness.stolen) == 1
            os.close(harness.stolen.pop())
            listening.clients.pop(0).close()
            harness.switch.turn(0)
        # The descriptor is the spare again or serves a client: no client waits indefinitely.
        for _ in range(3):
            harness.run()
        for client in waiting:
            with contextlib.suppress(BrokenPipeError):
                client.send(b"CMSG ping\0x")
        harness.run()
        answers = [client.recv(1_000) for client in waiting]
        assert set(answers) <= {REFUSALS[Refusal.NO_DESCRIPTOR], b"CMSG ping\0x"}
        assert answers.count(b"CMSG ping\0x") >= 1
        for fd in harness.stolen:
            os.close(fd)


def leave_descriptor_unread(harness: SwitchHarness) -> None:
    """Disconnect a client with a descriptor among its unread packets, so that the closer gets its socket."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine:
        pass_on(mine, b"MSG a\0", 0)
        number = harness.switch.next_connection()
        harness.switch.adopt(theirs.detach(), number)
        harness.switch.disconnect(number, b"CMSG !/bus/error\0EACCES")
        harness.switch.turn(0)
    assert harness.switch.closing()


@pytest.fixture
def may_close(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What the closer waits for before it closes a socket. It must be requested before the switch, which makes the closer."""
    event = threading.Event()

    def close_later(fd: int) -> None:
        event.wait()
        os.close(fd)

    monkeypatch.setattr(socket_closer, "_close", close_later)
    return event


def test_no_connection_is_accepted_while_too_many_sockets_are_closing(
    may_close: threading.Event, listening: ListeningHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers can send what sleeps in close(2) faster than threads close it. Traffic goes on, and does not keep the pause from ending."""
    harness = listening.harness
    old = harness.connect()
    try:
        # A second time, after connections were accepted: one socket more must be noticed.
        for _ in range(2):
            leave_descriptor_unread(harness)
            with monkeypatch.context() as patch:
                patch.setattr(socket_closer, "MAX_SOCKETS", len(harness.switch.closing()))
                listening.connect()
                harness.switch.turn(0)
                assert harness.events[-1] == ("accept failed", errno.EBUSY)
            harness.events.clear()
            end = time.monotonic() + PAUSE_SECONDS_MOST
            while not connected(harness):
                assert time.monotonic() < end
                harness.send(old, b"MSG unused\0")
                harness.switch.turn(0)
            listening.connect()
            harness.switch.turn(0)
            assert len(connected(harness)) == 2
    finally:
        may_close.set()
    end = time.monotonic() + PAUSE_SECONDS_MOST
    while harness.switch.closing():  # by threads, which the fixture would find at work
        assert time.monotonic() < end
        time.sleep(0.001)


def test_signals_that_interrupt_lose_nothing(harness: SwitchHarness) -> None:
    arrived = 0

    def count() -> None:
        nonlocal arrived
        arrived += 1

    listener, sender = harness.connect(b"a"), harness.connect()
    received: list[bytes] = []
    with alarm(count, 0.0005, 0.0005):
        for number in range(2_000):
            assert harness.send(sender, message(b"a", b"%d" % number))
            harness.run()
            received += harness.receive(listener)
        while arrived < 5:
            harness.switch.turn(10)
    assert received == [message(b"a", b"%d" % number) for number in range(2_000)]
