"""The connection of a blocking program, which a signal handler uses or interrupts."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from sbusd.client import Bus, Gap, Message, NoBus, Reconnected, Subscription, TimedOut
from sbusd.client.bus_socket import Target, open_socket
from sbusd.client.sync import connection
from tests.support.alarms import alarm
from tests.unit.client.conftest import WAIT_SECONDS, FakeBus


def fill(bus: Bus) -> None:
    """Publish until the socket is full."""
    bus._link.timeout = 0.0
    with suppress(TimedOut):
        while True:
            bus.publish("fill", b"x" * 1_000)


def test_a_call_is_woken_although_the_handler_that_read_its_message_could_not_send(fake: FakeBus) -> None:
    """A packet from the bus wakes it, and that needs room for a packet to the bus."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()

        def handle() -> None:
            peer.gate.clear()
            fill(bus)
            peer.say(b"MSG a\0x")
            with pytest.raises(TimedOut):
                bus.ping()
            threading.Timer(0.1, peer.gate.set).start()

        with alarm(handle, 0.1):
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"x")


def test_a_call_is_woken_after_a_handler_that_only_publishes(fake: FakeBus) -> None:
    """While packets are gathered, a publication may wait for room, and read meanwhile."""
    fake.takes_batches = True
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub, bus.coalesce():
        peer = fake.peer()
        bus.ping()

        def handle() -> None:
            peer.gate.clear()
            threading.Timer(0.2, peer.gate.set).start()
            peer.say(b"MSG a\0x")
            for _ in range(1_000):
                bus.publish("fill", b"x" * 10_000)

        with alarm(handle, 0.1):
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"x")


def test_a_call_that_a_handler_has_completed_is_in_time(fake: FakeBus) -> None:
    """The handler ends after the time limit of the call."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus:
        peer = fake.peer()
        peer.gate.clear()
        bus._link.timeout = 1.0

        def handle() -> None:
            peer.gate.set()
            bus._link.timeout = WAIT_SECONDS
            bus.ping()
            time.sleep(1.1)

        with alarm(handle, 0.1):
            assert bus.ping() > 0


def test_a_handler_connects_again_while_an_attempt_of_the_call_fails(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def fail_once(target: Target, timeout: float | None) -> socket.socket:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            return open_socket(target, timeout)
        signal.raise_signal(signal.SIGALRM)
        raise NoBus(fake.address, "as the test says")

    with Bus.connect(fake.address, timeout=WAIT_SECONDS, reconnect=True) as bus, bus.subscribe("a") as sub:
        monkeypatch.setattr(connection, "open_socket", fail_once)
        _check_reconnection(fake, bus, sub)


class _SignalOfLog(logging.Handler):
    """Raises SIGALRM when the loss of the connection is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        if "reconnecting" in record.getMessage():
            signal.raise_signal(signal.SIGALRM)


def test_a_handler_connects_again_while_the_call_logs_the_loss(fake: FakeBus) -> None:
    handler = _SignalOfLog()
    logging.getLogger("sbusd.client").addHandler(handler)
    try:
        with Bus.connect(fake.address, timeout=WAIT_SECONDS, reconnect=True) as bus, bus.subscribe("a") as sub:
            _check_reconnection(fake, bus, sub)
    finally:
        logging.getLogger("sbusd.client").removeHandler(handler)


def _check_reconnection(fake: FakeBus, bus: Bus, sub: Subscription) -> None:
    """End the connection; a handler connects again, and the call that it has interrupted uses that connection."""
    fake.peer().hang_up()
    with alarm(bus.ping, 0.0):
        assert isinstance(sub.receive(WAIT_SECONDS), Reconnected)
    bus.ping()
    assert bus.statistics.reconnects == 1
    assert fake.peer().patterns == [b"a"]


def test_an_exception_while_a_packet_is_handled_leaves_a_gap(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be lost, or only a part of what follows from it done."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub:
        receive = bus._session.receive

        def interrupt(*arguments: object) -> None:
            monkeypatch.setattr(bus._session, "receive", receive)
            raise KeyboardInterrupt

        for receives in (partial(sub.receive, WAIT_SECONDS), partial(next, sub.items())):
            monkeypatch.setattr(bus._session, "receive", interrupt)
            bus.publish("a", "lost")
            with pytest.raises(KeyboardInterrupt):
                receives()
            bus.publish("a", "next")
            assert [sub.receive(WAIT_SECONDS), sub.receive(WAIT_SECONDS)] == [Gap(0), Message(b"a", b"next")]
        assert bus.statistics.lost_unknown == 2


def test_a_thread_reads_on_although_another_is_under_a_handler(fake: FakeBus) -> None:
    """The thread that reads leaves. The main thread waits too, but it is in a handler, which does not use the bus."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub, bus.subscribe("b") as main:
        peer = fake.peer()
        received = threading.Event()

        def receive() -> None:
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"x")
            received.set()

        def read_first() -> None:
            with pytest.raises(TimedOut):
                sub.receive(0.4)

        def handle() -> None:
            threads[0].join(WAIT_SECONDS)  # the reader leaves
            peer.say(b"MSG a\0x")
            assert received.wait(WAIT_SECONDS)

        threads = [threading.Thread(target=read_first), threading.Thread(target=receive)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        with alarm(handle, 0.2), pytest.raises(TimedOut):
            main.receive(1.0)
        for thread in threads:
            thread.join()


def test_a_thread_leaves_although_it_cannot_wake_the_interrupted_call(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("cannot start a thread")

    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus:
        link = bus._link
        with monkeypatch.context() as patch:
            patch.setattr(link, "_owes_packet", True)
            patch.setattr(link, "_wake_interrupted_call", fail)
            with pytest.raises(RuntimeError, match="cannot start"), link.entered():
                pass
        assert (link.threads.alone, link.threads.inside) == (0, 0)
        assert bus.ping() > 0


def test_a_thread_receives_on_while_another_waits_for_room(fake: FakeBus) -> None:
    """The one that waits must not read while the subscription is full, and has to notice when it is not."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS, queue_packets=5) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()
        peer.gate.clear()
        peer.say(*(b"MSG a\0%d" % number for number in range(30)))
        published = threading.Event()

        def publish() -> None:
            for _ in range(3_000):
                bus.publish("fill", b"x" * 1_000)
            published.set()

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            for number in range(30):
                assert sub.receive(WAIT_SECONDS / 2) == Message(b"a", b"%d" % number)
            assert not published.is_set()
        finally:
            peer.gate.set()
            thread.join()
