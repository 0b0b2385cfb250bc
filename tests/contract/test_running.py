"""How a switch runs between two looks of the loop around it: `run` in sbusd/dataplane/contract.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sbusd.dataplane.contract import End, Refusal
from sbusd.dataplane.counters import ConnectionCounters
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message


@contextmanager
def alongside(work: Callable[[], None]) -> Iterator[None]:
    """Do *work* in a thread; at the end it has done it, or raises what that has."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()


class ReturningHarness(SwitchHarness):
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
def returning(make_harness: MakeHarness) -> SwitchHarness:
    return make_harness(of=ReturningHarness)


def test_the_sink_may_disconnect_in_a_control_packet_call(returning: SwitchHarness) -> None:
    client = returning.connect()
    returning.send(client, b"SUB a")
    returning.switch.run(-1)
    assert returning.switch.patterns(client) == {b"a": 1}


def test_the_sink_may_disconnect_in_an_end_call(returning: SwitchHarness) -> None:
    client = returning.connect()
    returning.hang_up(client)
    while not returning.events:
        returning.switch.run(-1)
    assert returning.events[0][:2] == ("ended", client)


def test_the_sink_may_disconnect_in_a_refusal_call(returning: SwitchHarness) -> None:
    client = returning.connect()
    returning.send(client, message(b"!/reserved"))
    returning.switch.run(-1)
    assert returning.events[0][:2] == ("refused", client)


def test_control_packets_alone_do_not_end_it(harness: SwitchHarness) -> None:
    client, taken = harness.connect(), []
    for _ in range(5):  # on a slow machine one turn may take all of the time
        started = harness.switch.counters().turns
        harness.send(client, b"SUB a")
        harness.switch.run(20)
        taken.append(harness.switch.counters().turns - started)
    assert harness.switch.patterns(client) == {b"a": 5}
    assert max(taken) > 1, "it waits for its time to be over"


def test_a_watched_descriptor_ends_it_after_its_callback(harness: SwitchHarness) -> None:
    inner, outer = os.pipe()
    called: list[bytes] = []
    try:
        harness.switch.watch(inner, lambda: called.append(os.read(inner, 1)))
        os.write(outer, b"x")
        harness.switch.run(-1)
        assert called == [b"x"]
        harness.switch.unwatch(inner)
    finally:
        os.close(inner)
        os.close(outer)


def test_without_time_it_is_one_turn(harness: SwitchHarness) -> None:
    before = harness.switch.counters().turns
    harness.switch.run(0)
    assert harness.switch.counters().turns == before + 1


def test_its_time_ends_it_where_nothing_happens(harness: SwitchHarness) -> None:
    harness.switch.run(1)


def test_its_time_ends_it_though_messages_keep_coming(harness: SwitchHarness) -> None:
    harness.connect(b"a")
    publisher = harness.clients[harness.connect()]
    publisher.setblocking(True)
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            publisher.send(message(b"b"))

    with alongside(publish):
        try:
            for _ in range(3):
                harness.switch.run(20)
        finally:
            is_over.set()
            harness.run()


def test_messages_alone_do_not_end_it(returning: SwitchHarness) -> None:
    harness = returning
    reader = harness.clients[harness.connect(b"a")]
    client = harness.clients[harness.connect()]
    reader.setblocking(True)

    def talk() -> None:
        for number in range(100):
            client.send(message(b"a", b"%d" % number))
            assert reader.recv(100) == message(b"a", b"%d" % number)
        client.send(b"CMSG x")

    before = harness.switch.counters().turns
    with alongside(talk):
        harness.switch.run(-1)
    assert harness.switch.counters().turns > before + 100, "each message was waited for, and made a turn at least"


def test_exceptions_of_the_sink_propagate(make_harness: MakeHarness) -> None:
    class Failing(SwitchHarness):
        def control(self, connection: int, packet: bytes) -> None:
            raise LookupError(packet)

    harness = make_harness(of=Failing)
    client = harness.connect()
    harness.send(client, b"CMSG x")
    with pytest.raises(LookupError, match="CMSG x"):
        harness.switch.run(-1)
