"""The connection of a blocking program, which a signal handler or another call uses or interrupts."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial

import pytest

from sbus import Bus, Gap, Message, NoBus, PayloadTooLarge, Reconnected, TimedOut
from sbus.bus_socket import Target, open_socket
from sbus.sync import connection
from tests.support.alarms import alarm
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus


def fill(bus: Bus) -> None:
    """Publish until the socket is full."""
    before, bus._link.timeout = bus._link.timeout, 0.0
    with suppress(TimedOut):
        while True:
            bus.publish("fill", b"x" * 1_000)
    bus._link.timeout = before


def publish_many(bus: Bus) -> None:
    """Publish as many messages as a program could expect to be queued, and more."""
    for _ in range(10_000):
        bus.publish("x", "3")


def test_a_handler_publishes_while_the_socket_of_the_call_is_full(fake: FakeBus) -> None:
    """It waits for room, and does not read what the call waits for."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()

        def handle() -> None:
            peer.gate.clear()
            fill(bus)
            bus._link.timeout = 0.0
            with pytest.raises(TimedOut):
                bus.publish("too early")
            bus._link.timeout = WAIT_SECONDS
            threading.Timer(0.1, peer.gate.set).start()
            bus.publish("from/handler")
            peer.say(b"MSG a\0x")

        with alarm(handle, 0.1):
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"x")
        bus.ping()
        assert b"MSG from/handler\0" in peer.received
        assert b"MSG too early\0" not in peer.received


def test_handlers_change_things_while_a_call_changes_others(fake: FakeBus) -> None:
    """They publish, end subscriptions and close the bus at the end of that call, in this order, and get errors for all else."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as first, bus.subscribe("b") as second:
        peer = fake.peer()

        def handle() -> None:
            bus.publish("x", "1")
            bus.publish("x", "2")
            first.close()
            second.drain()
            bus.unsubscribe("c")  # without such a subscription; the error would come too late
            for call in (bus.ping, bus.whoami, bus.flush, second.receive, lambda: bus.subscribe("c")):
                with pytest.raises(RuntimeError, match="let the handler set a flag"):
                    call()
            with pytest.raises(PayloadTooLarge):
                bus.publish("x", b"x" * 10_000_000)
            with pytest.raises(RuntimeError, match="let the handler set a flag"):
                publish_many(bus)

        bus._link.locked(handle)
        bus.publish("x", "4")
        assert list(second) == []
        bus.ping()
        sent = [packet for packet in peer.received if packet.startswith((b"MSG x", b"UNSUB"))]
        assert sent[:4] == [b"MSG x\x001", b"MSG x\x002", b"UNSUB a", b"UNSUB b"]
        assert set(sent[4:-1]) == {b"MSG x\x003"}
        assert sent[-1] == b"MSG x\x004"
        bus._link.locked(bus.close)
        assert bus.state == "closed"


@pytest.mark.parametrize("gather", [False, True])
def test_a_handler_does_not_overtake_what_another_has_left(fake: FakeBus, *, gather: bool) -> None:
    """It comes when the call has released the lock, and has not yet done that."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS, gather=gather) as bus, bus.subscribe("x") as sub:
        peer = fake.peer()
        for first, second in ((b"1", b"2"), (b"3", b"4")):
            bus._link.threads.late.append(partial(bus._link._post, b"MSG x\0" + first))
            bus.publish("x", second)
        bus._link.threads.late.append(partial(bus._link._post, b"MSG x\0" + b"5"))
        sub.close()
        bus.ping()
        sent = [packet for packet in peer.received if packet.startswith((b"MSG x", b"UNSUB"))]
        assert sent == [*(b"MSG x\0%d" % number for number in range(1, 6)), b"UNSUB x"]


@pytest.mark.parametrize("of_items", [False, True])
@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("end", ["close", "drain", "unsubscribe"])
def test_iteration_ends_if_another_call_has_read_the_end(fake: FakeBus, end: str, *, gather: bool, of_items: bool) -> None:
    """No packet arrives later, so iteration must not wait for one."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS, gather=gather) as bus, bus.subscribe("a") as sub:
        (partial(bus.unsubscribe, "a") if end == "unsubscribe" else getattr(sub, end))()
        bus.ping()
        assert list(sub.items() if of_items else sub) == []


def test_a_call_that_a_handler_has_delayed_is_in_time(fake: FakeBus) -> None:
    """The handler ends after the time limit of the call, and the response has arrived."""
    with Bus.connect(fake.address, timeout=WAIT_SECONDS) as bus:
        peer = fake.peer()
        peer.gate.clear()
        bus._link.timeout = 1.0

        def handle() -> None:
            peer.gate.set()
            assert select.select([bus], [], [], WAIT_SECONDS)[0]
            time.sleep(1.1)

        with alarm(handle, 0.1):
            assert bus.ping() > 0


def test_a_handler_publishes_while_the_call_connects_again(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message waits for the new connection; a call that would have to connect is refused."""
    attempts = 0

    def fail_once(target: Target, timeout: float | None) -> socket.socket:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            return open_socket(target, timeout)
        signal.raise_signal(signal.SIGALRM)
        raise NoBus(fake.address, "as the test says")

    with Bus.connect(fake.address, timeout=WAIT_SECONDS, reconnect=True) as bus, bus.subscribe("a") as sub:

        def handle() -> None:
            with pytest.raises(RuntimeError, match="let the handler set a flag"):
                bus.ping()
            bus.publish("a", "from a handler")

        monkeypatch.setattr(connection, "open_socket", fail_once)
        fake.peer().hang_up()
        with alarm(handle, 0.0):
            assert isinstance(sub.receive(WAIT_SECONDS), Reconnected)
        assert sub.receive(WAIT_SECONDS) == Message(b"a", b"from a handler")
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
