"""How a switch runs between two looks of the loop around it: `run` in sbusd/daemon/contract.py, of both switches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sbusd.config.settings import LimitSettings
from tests.support.wire import message
from tests.support.world import MakeWorld, World


@contextmanager
def alongside(work: Callable[[], None]) -> Iterator[None]:
    """Do *work* in a thread; at the end it has done it, or raises what that has."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


def test_a_packet_for_the_control_plane_ends_it(world: World) -> None:
    client = world.connect()
    world.send(client, b"SUB a")
    world.switch.run(-1)
    assert world.switch.patterns(client) == {b"a": 1}


def test_the_end_of_a_connection_ends_it(world: World) -> None:
    client = world.connect()
    world.hang_up(client)
    while not world.told:
        world.switch.run(-1)
    assert world.told[0][:2] == ("ended", client)


def test_a_refused_message_ends_it(world: World) -> None:
    client = world.connect()
    world.send(client, message(b"!/reserved"))
    world.switch.run(-1)
    assert world.told[0][:2] == ("refused", client)


def test_a_loss_that_was_told_ends_it(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=1))
    reader = world.connect(b"a", send_buffer=5_000)
    publisher = world.connect()
    for number in range(100):
        world.send(publisher, message(b"a", b"%200d" % number))
        world.run()
    assert world.switch.connection_counters(reader).lost_packets
    while not any(told[0] == "lost" for told in world.told):
        world.receive(reader)
        world.switch.run(1_000)


def test_a_watched_descriptor_ends_it_after_its_callback(world: World) -> None:
    inner, outer = os.pipe()
    called: list[bytes] = []
    try:
        world.switch.watch(inner, lambda: called.append(os.read(inner, 1)))
        os.write(outer, b"x")
        world.switch.run(-1)
        assert called == [b"x"]
        world.switch.unwatch(inner)
    finally:
        os.close(inner)
        os.close(outer)


def test_without_time_it_is_one_turn(world: World) -> None:
    before = world.switch.counters().turns
    world.switch.run(0)
    assert world.switch.counters().turns == before + 1


def test_its_time_ends_it_where_nothing_happens(world: World) -> None:
    world.switch.run(1)


def test_its_time_ends_it_though_messages_keep_coming(world: World) -> None:
    world.connect(b"a")
    publisher = world.clients[world.connect()]
    publisher.setblocking(True)
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            publisher.send(message(b"b"))

    with alongside(publish):
        try:
            for _ in range(3):
                world.switch.run(20)
        finally:
            is_over.set()
            world.run()


@pytest.mark.parametrize("switch_kind", ["compiled"])
def test_messages_alone_do_not_end_it(world: World) -> None:
    reader = world.clients[world.connect(b"a")]
    client = world.clients[world.connect()]
    reader.setblocking(True)

    def talk() -> None:
        for number in range(100):
            client.send(message(b"a", b"%d" % number))
            assert reader.recv(100) == message(b"a", b"%d" % number)
        client.send(b"CMSG x")

    before = world.switch.counters().turns
    with alongside(talk):
        world.switch.run(-1)
    assert world.switch.counters().turns > before + 100, "each message was waited for, and made a turn at least"


def test_what_the_sink_raises_comes_out_of_it(make_world: MakeWorld) -> None:
    class Failing(World):
        def control(self, connection: int, packet: bytes) -> None:
            raise LookupError(packet)

    world = make_world(of=Failing)
    client = world.connect()
    world.send(client, b"CMSG x")
    with pytest.raises(LookupError, match="CMSG x"):
        world.switch.run(-1)
