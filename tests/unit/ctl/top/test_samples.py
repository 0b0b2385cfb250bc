"""One look at a bus."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sbusd.ctl.top.samples import Sampler
from sbusd.ctl.top.sockets import QueueDepths, SocketsUnseenError, UnixSocket
from sbusd.protocol import controls
from sbusd.protocol.errors import SbusError


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


def test_a_kernel_that_does_not_tell_is_told() -> None:
    def unseen() -> Mapping[int, UnixSocket]:
        raise SocketsUnseenError("no")

    sample = Sampler(FakeBus(), with_users=False, sockets=unseen).sample()
    assert sample.unseen == "cannot read the kernel queues: no"
    assert set(sample.depths.values()) == {QueueDepths()}


@pytest.mark.parametrize(("features", "told"), [(b"stats\nusers", 1), (b"stats", 0), (b"superusers", 0)])
def test_users_are_asked_for_where_the_bus_knows_them(features: bytes, told: int) -> None:
    bus = FakeBus(features)
    assert len(Sampler(bus, with_users=True, sockets=_sockets).sample().users) == told
    assert (b"!/bus/users" in bus.asked) is bool(told)


def test_a_bus_that_has_gone_is_an_error() -> None:
    class Gone:
        def control(self, key: bytes, payload: bytes | None = None) -> bytes:
            raise SbusError("disconnected")

    with pytest.raises(SbusError, match="disconnected"):
        Sampler(Gone(), with_users=False, sockets=_sockets).sample()
