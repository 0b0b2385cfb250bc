"""The connection of a blocking program, which a signal handler uses too."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress

import pytest

from sbusd.client import Bus, Message, TimedOut
from tests.unit.client.conftest import WAIT_SECONDS, FakeBus


def test_a_call_is_woken_although_the_handler_that_read_its_message_could_not_send(fake: FakeBus) -> None:
    """A packet from the bus wakes it, and that needs room for a packet to the bus."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()

        def handle(number: int, frame: object) -> None:
            peer.gate.clear()
            bus._link.timeout = 0.0
            with suppress(TimedOut):
                while True:
                    bus.publish("fill")
            peer.say(b"MSG a\0x")
            with pytest.raises(TimedOut):
                bus.ping()
            threading.Timer(0.1, peer.gate.set).start()

        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"x")
        finally:
            signal.signal(signal.SIGALRM, before)
            peer.gate.set()
