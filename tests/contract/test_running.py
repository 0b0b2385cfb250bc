"""How a switch runs between two looks of the loop around it: `run` in sbusd/dataplane/contract.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sbusd.dataplane.contract import ConnectionCounters, End, Refusal
from tests.support.wire import message
from tests.support.world import MakeWorld, World


@contextmanager
def alongside(work: Callable[[], None]) -> Iterator[None]:
    """Do *work* in a thread; at the end it has done it, or raises what that has."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


class Returning(World):
    """A sink that has something to do between turns whenever it is called."""

    def control(self, connection: int, packet: bytes) -> None:
        super().control(connection, packet)
        self.switch.return_soon()

    def ended(self, connection: int, end: End, counters: ConnectionCounters) -> None:
        super().ended(connection, end, counters)
        self.switch.return_soon()

    def refused(self, connection: int, refusal: Refusal, key: bytes, count: int) -> None:
        super().refused(connection, refusal, key, count)
        self.switch.return_soon()


@pytest.fixture
def returning(make_world: MakeWorld) -> World:
    return make_world(of=Returning)


def test_sink_that_is_told_of_a_control_packet_can_end_it(returning: World) -> None:
    client = returning.connect()
    returning.send(client, b"SUB a")
    returning.switch.run(-1)
    assert returning.switch.patterns(client) == {b"a": 1}


def test_sink_that_is_told_of_an_end_can_end_it(returning: World) -> None:
    client = returning.connect()
    returning.hang_up(client)
    while not returning.told:
        returning.switch.run(-1)
    assert returning.told[0][:2] == ("ended", client)


def test_sink_that_is_told_of_a_refusal_can_end_it(returning: World) -> None:
    client = returning.connect()
    returning.send(client, message(b"!/reserved"))
    returning.switch.run(-1)
    assert returning.told[0][:2] == ("refused", client)


def test_control_packets_alone_do_not_end_it(world: World) -> None:
    client = world.connect()
    started = world.switch.counters().turns
    world.send(client, b"SUB a")
    world.switch.run(20)
    assert world.switch.patterns(client) == {b"a": 1}
    assert world.switch.counters().turns > started + 1, "it waits for its time to be over"


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


def test_messages_alone_do_not_end_it(returning: World) -> None:
    world = returning
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
