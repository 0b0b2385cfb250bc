"""One sample of the bus, and of the kernel's queues."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator, Mapping

import pytest

from sbus.bus_documents import JsonObject
from sbus.protocol import controls
from sbus.protocol.errors import SbusError
from sbusctl.processes import NameCache
from sbusctl.responses import connection_info
from sbusctl.top.samples import (
    QueueDepths,
    Row,
    Sample,
    Sampler,
    SocketsUnseenError,
    UnixSocket,
    connection_rows,
    depths,
    ordered,
    per_second,
    read_sockets,
    totals,
    user_rows,
)
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


_ZERO = {
    "received_packets": 0,
    "received_bytes": 0,
    "delivered_packets": 0,
    "delivered_bytes": 0,
    "queued_packets": 0,
    "queued_bytes": 0,
    "lost_packets": 0,
    "refused_packets": 0,
}


def _sample(moment: float, *items: dict[str, object], stats: JsonObject | None = None, hidden: int = 0) -> Sample:
    """Return a sample of connections whose counters are 0 unless given; the kernel holds 1 to 4 bytes for each."""
    found = {each.id: each for item in items if (each := connection_info({"uid": 0, "pid": -1, **_ZERO, **item})).id is not None}
    return Sample(moment, 1000.0 + moment, stats or {}, found, hidden, {key: QueueDepths(1, 2, 3, 4) for key in found}, "")


@pytest.mark.parametrize(
    ("before", "after", "seconds", "rate"),
    [
        (0, 10, 2.0, 5.0),
        (7, 7, 1.0, 0.0),
        (None, 1, 1.0, None),
        (1, None, 1.0, None),
        (9, 3, 1.0, None),
        (0, 1, 0.0, None),
        (0, 1, -1.0, None),
    ],
)
def test_rates(before: int | None, after: int | None, seconds: float, rate: float | None) -> None:
    assert per_second(before, after, seconds) == rate


def test_the_first_sample_has_no_rates() -> None:
    (row,) = connection_rows(None, _sample(1.0, {"id": 1, "received_packets": 9}), NameCache())
    assert (row["received_packets"], row["received_packets_per_second"]) == (9, None)
    assert totals(None, _sample(1.0), [row])["received_packets_per_second"] is None


def test_connections_that_stay_come_and_go() -> None:
    earlier = _sample(10.0, {"id": 1, "received_packets": 10, "delivered_bytes": 100, "lost_packets": 5}, {"id": 2})
    later = _sample(
        12.0,
        {"id": 1, "received_packets": 30, "delivered_bytes": 100, "lost_packets": 6, "queued_packets": 3},
        {"id": 3, "received_packets": 4, "received_bytes": 50},
    )
    first, new = connection_rows(earlier, later, NameCache())
    assert [first[f"{name}_per_second"] for name in ("received_packets", "delivered_bytes", "lost_packets")] == [10.0, 0.0, 0.5]
    assert (first["queued_packets"], first["client_receive_bytes"], first["user"]) == (3, 3, "root")
    # All that a new connection has done, it did since the earlier sample.
    assert (new["id"], new["received_packets_per_second"], new["received_bytes_per_second"]) == (3, 2.0, 25.0)


def test_modes() -> None:
    modes = {"soft": "queue", "hard": "block", "order": "random"}
    rows = connection_rows(None, _sample(1.0, {"id": 1, **modes}, {"id": 2, "soft": "queue"}), NameCache())
    assert [row["mode"] for row in rows] == ["queue/block/random", None]


def test_counters_that_went_back_have_no_rate() -> None:
    (row,) = connection_rows(_sample(1.0, {"id": 1, "received_packets": 5}), _sample(2.0, {"id": 1, "received_packets": 4}), NameCache())
    assert row["received_packets_per_second"] is None
    assert row["delivered_packets_per_second"] == 0.0


def test_totals_of_the_bus_are_used_if_available() -> None:
    """A connection that came and went between the samples is in them."""
    earlier = _sample(1.0, {"id": 1, "lost_packets": 1}, stats={"counters": {"received_packets": 100}})
    later = _sample(3.0, {"id": 1, "lost_packets": 5}, stats={"counters": {"received_packets": 300}, "uptime_seconds": 9.5}, hidden=2)
    found = totals(earlier, later, connection_rows(earlier, later, NameCache()))
    assert (found["received_packets"], found["received_packets_per_second"]) == (300, 100.0)
    assert (found["lost_packets"], found["lost_packets_per_second"]) == (5, 2.0)
    assert (found["connections"], found["hidden"], found["uptime_seconds"]) == (1, 2, 9.5)


def test_totals_of_others_are_sums() -> None:
    earlier = _sample(1.0, {"id": 1}, {"id": 2})
    later = _sample(2.0, {"id": 1, "received_packets": 3, "queued_bytes": 7}, {"id": 2, "received_packets": 4, "queued_bytes": 1})
    found = totals(earlier, later, connection_rows(earlier, later, NameCache()))
    assert (found["received_packets"], found["received_packets_per_second"], found["queued_bytes"]) == (7, 7.0, 8)
    assert found["uptime_seconds"] is None


def _by_user(reported: list[JsonObject]) -> list[Row]:
    """Return the rows of two users: 0 with two connections, 7 with one."""
    earlier = _sample(1.0, {"id": 1}, {"id": 2}, {"id": 3, "uid": 7})
    later = _sample(
        3.0,
        {"id": 1, "received_packets": 2, "queued_bytes": 10, "lost_packets": 1},
        {"id": 2, "received_packets": 4, "queued_bytes": 20, "lost_packets": 2},
        {"id": 3, "uid": 7, "subscriptions": 9},
    )
    return user_rows(connection_rows(earlier, later, NameCache()), reported, NameCache())


def test_users_are_sums_of_their_connections() -> None:
    root, other = _by_user([])
    assert (root["uid"], root["user"], root["connections"], root["queued_bytes"]) == (0, "root", 2, 30)
    assert (root["lost_packets"], root["received_packets_per_second"], root["client_receive_bytes"]) == (3, 3.0, 6)
    assert (other["uid"], other["connections"], other["subscriptions"]) == (7, 1, 9)


def test_the_bus_counters_of_a_user_override_the_sums() -> None:
    limits = {"queued_bytes": 100}
    reported: list[JsonObject] = [
        {"uid": 0, "connections": 2, "queued_bytes": 31, "lost_packets": 50, "pattern_bytes": 12, "limits": limits},
        {"uid": 9, "connections": 0, "lost_packets": 4},
        {"nonsense": 1},
    ]
    root, other, ended = _by_user(reported)
    assert (root["queued_bytes"], root["lost_packets"], root["pattern_bytes"], root["limits"]) == (31, 50, 12, limits)
    assert root["received_packets_per_second"] == 3.0
    assert other["lost_packets"] == 0
    # All its connections have ended, its losses are still told.
    assert (ended["uid"], ended["connections"], ended["lost_packets"]) == (9, 0, 4)


def test_the_nearest_quota() -> None:
    limits: dict[str, object] = {"queued_bytes": 100, "subscriptions": 10, "control_rate": 5, "connections": 0}
    reported: list[JsonObject] = [
        {"uid": 0, "queued_bytes": 50, "subscriptions": 4, "limits": limits, "refused": {"connections": 3, "subscriptions": 4, "x": "y"}},
        {"uid": 7, "limits": limits, "refused": {}},
        {"uid": 8},
    ]
    found = [(row["quota_share"], row["quota_nearest"], row["quota_refusals"]) for row in _by_user(reported)]
    assert found == [(0.5, "queued_bytes", 7), (None, None, 0), (None, None, None)]


def test_numbers_beyond_all_counters_are_none() -> None:
    root, *_ = _by_user([{"uid": 0, "queued_bytes": 10**400}])
    assert root["queued_bytes"] is None
    row, *_ = connection_rows(_sample(1.0), _sample(2.0, {"id": 1, "received_packets": 10**400}), NameCache())
    assert row["received_packets_per_second"] is None


def test_order() -> None:
    rows: list[Row] = [
        {"id": 1, "queued_bytes": 5, "user": "b"},
        {"id": 2, "queued_bytes": None, "user": "a"},
        {"id": 3, "queued_bytes": 7},
        {"id": 4, "queued_bytes": 5, "user": "c", "delivered_packets_per_second": 1.0},
        {"id": 5, "queued_bytes": 5, "user": "a"},
    ]
    assert [row["id"] for row in ordered(rows, "queued_bytes")] == [3, 4, 1, 5, 2]
    assert [row["id"] for row in ordered(rows, "user")] == [2, 5, 1, 4, 3]
    assert [row["id"] for row in ordered(rows, "id")] == [5, 4, 3, 2, 1]
