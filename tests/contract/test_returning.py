"""When `run` returns because it was asked to."""

from __future__ import annotations

import time

from tests.support.in_process_bus import InProcessBus
from tests.support.wire import message

LONG_MS = 30_000


def test_a_call_between_turns_is_not_forgotten_and_the_turn_does_not_wait(bus: InProcessBus) -> None:
    bus.run()
    before, began = bus.switch.counters().turns, time.monotonic()
    bus.switch.return_soon()
    bus.switch.run(LONG_MS)
    assert bus.switch.counters().turns == before + 1
    assert time.monotonic() - began < LONG_MS / 1000


def test_a_call_holds_once(bus: InProcessBus) -> None:
    for end in (lambda: bus.switch.turn(0), lambda: bus.switch.run(0)):
        bus.switch.return_soon()
        end()
        began = time.monotonic()
        bus.switch.run(50)
        assert time.monotonic() - began >= 0.04


def test_what_is_ready_has_its_turn_however_often_it_is_called(bus: InProcessBus) -> None:
    asking, publisher, listener = bus.client(), bus.client(uid=1000), bus.client(uid=1001)
    listener.subscribe(b"a")
    assert listener.barrier() == []
    for number in range(10):
        asking.send(b"CMSG !/bus/ping\0x")
        publisher.publish(b"a", b"%d" % number)
        bus.switch.return_soon()
        bus.switch.run(LONG_MS)
        # One turn has served both, though it was asked to end at once.
        assert listener.receive_all() == [message(b"a", b"%d" % number)]
        assert asking.receive_all() == [b"CMSG !/bus/ping\0x"]
