"""One sample of the bus, and of the kernel's queues."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping

import pytest

from sbusd.ctl.top.samples import QueueDepths, Sampler, SocketsUnseenError, UnixSocket, depths, read_sockets
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError
from tests.support import skips


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets, as the bus and a client have them."""
    bus, client = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with bus, client:
        yield bus, client


def _read_or_skip() -> dict[int, UnixSocket]:
    """Return what the kernel says, and skip where it has no sock_diag."""
    try:
        return read_sockets()
    except SocketsUnseenError as error:
        skips.require(False, f"needs sock_diag for Unix sockets: {error}", could_run=False)
        raise


def test_the_kernel_reports_the_queues_of_both_ends(pair: tuple[socket.socket, socket.socket]) -> None:
    bus, client = pair
    bus.send(bytes(1000))
    bus.send(bytes(24))
    client.send(bytes(7))
    inode, peer = os.fstat(bus.fileno()).st_ino, os.fstat(client.fileno()).st_ino
    sockets = _read_or_skip()
    assert (sockets[inode].peer, sockets[peer].peer) == (peer, inode)
    seen = depths(sockets, inode)
    assert (seen.bus_receive_bytes, seen.client_receive_bytes) == (7, 1024)
    # What is sent counts as memory, with the kernel's overhead.
    assert seen.bus_send_bytes is not None
    assert seen.client_send_bytes is not None
    assert seen.bus_send_bytes > 1024
    assert seen.client_send_bytes > 7
    client.recv(2000)
    assert depths(_read_or_skip(), inode).client_receive_bytes == 24


def test_many_sockets_come_in_more_than_one_datagram() -> None:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(400)]
    try:
        inodes = {os.fstat(each.fileno()).st_ino for both in pairs for each in both}
        assert inodes <= _read_or_skip().keys()
    finally:
        for both in pairs:
            for each in both:
                each.close()


def test_a_missing_socket_is_not_found() -> None:
    alone = {5: UnixSocket(6, 10, 20)}
    assert depths(alone, 5) == QueueDepths(10, 20)
    assert depths(alone, 6) == depths(alone, None) == QueueDepths()
    assert depths({5: UnixSocket(None, 10, 20)}, 5) == QueueDepths(10, 20)


class FakeKernel:
    """A netlink socket that answers what a test wants; sent datagrams are accepted and forgotten."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self.recv = receive

    def __enter__(self) -> FakeKernel:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def settimeout(self, seconds: float) -> None:
        assert 0 < seconds <= 5

    def send(self, data: bytes) -> int:
        return len(data)


def _never(_size: int) -> bytes:
    raise TimeoutError


def _refusal(_size: int) -> bytes:
    return struct.pack("=IHHIIi", 36, 2, 0, 0, 0, -errno.ENOENT) + bytes(16)


@pytest.mark.parametrize(
    ("receive", "reason"),
    [(_never, "the kernel did not list all sockets within 5 s"), (_refusal, "No such file or directory")],
)
def test_a_kernel_without_socket_information_is_one_line(
    monkeypatch: pytest.MonkeyPatch, receive: Callable[[int], bytes], reason: str
) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: FakeKernel(receive))
    with pytest.raises(SocketsUnseenError) as caught:
        read_sockets()
    assert str(caught.value) == f"cannot read the kernel queues: {reason}"


def test_a_process_that_may_not_ask_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(SocketsUnseenError, match="Operation not permitted"):
        read_sockets()


class FakeBus:
    """A bus with three connections on two pages."""

    def __init__(self, features: bytes = b"connections\nstats") -> None:
        self.features = features
        self.asked: list[bytes] = []

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        self.asked.append(key)
        if key == controls.FEATURES:
            return self.features
        if key == controls.STATS:
            return b'{"scope":"bus","counters":{"received_packets":5}}'
        if key == b"!/bus/users":
            return b'{"users":[{"uid":7,"queued_packets":1}],"next":null,"hidden":0}'
        assert key == controls.CONNECTIONS
        first = {"connections": [{"id": 1, "inode": 100}, {"id": 2, "inode": 200}], "next": 2, "hidden": 4}
        second = {"connections": [{"id": 3, "inode": 300}, {"inode": 1}], "next": None, "hidden": 4}
        return json.dumps(second if payload == b"2" else first).encode()


def _sockets() -> Mapping[int, UnixSocket]:
    return {100: UnixSocket(101, 1, 2), 101: UnixSocket(100, 3, 4), 200: UnixSocket(201, 5, 6)}


def test_all_pages_and_the_kernels_queues() -> None:
    sample = Sampler(FakeBus(), with_users=False, sockets=_sockets).sample()
    assert list(sample.connections) == [1, 2, 3]
    assert sample.hidden == 4
    assert sample.depths == {1: QueueDepths(1, 2, 3, 4), 2: QueueDepths(5, 6), 3: QueueDepths()}
    assert (sample.unseen, sample.users) == ("", ())
    assert sample.stats["scope"] == "bus"


def test_moments_grow() -> None:
    sampler = Sampler(FakeBus(), with_users=False, sockets=_sockets)
    assert sampler.sample().moment < sampler.sample().moment


def test_a_kernel_without_socket_information_is_reported() -> None:
    def unseen() -> Mapping[int, UnixSocket]:
        raise SocketsUnseenError("no")

    sample = Sampler(FakeBus(), with_users=False, sockets=unseen).sample()
    assert sample.unseen == "cannot read the kernel queues: no"
    assert set(sample.depths.values()) == {QueueDepths()}


@pytest.mark.parametrize(("features", "reported"), [(b"stats\nusers", 1), (b"stats", 0), (b"superusers", 0)])
def test_users_are_asked_for_where_the_bus_knows_them(features: bytes, reported: int) -> None:
    bus = FakeBus(features)
    assert len(Sampler(bus, with_users=True, sockets=_sockets).sample().users) == reported
    assert (b"!/bus/users" in bus.asked) is bool(reported)


def test_a_stopped_bus_is_an_error() -> None:
    class Gone:
        def control(self, key: bytes, payload: bytes | None = None) -> bytes:
            raise SbusError("disconnected")

    with pytest.raises(SbusError, match="disconnected"):
        Sampler(Gone(), with_users=False, sockets=_sockets).sample()
