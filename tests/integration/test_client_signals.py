"""Signal handlers use, close and interrupt a ``Bus``."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
from collections import defaultdict
from contextlib import suppress
from functools import partial

import pytest

from sbus import Bus, Disconnected, Gap, Message, Reconnected, Subscription, TimedOut
from tests.support.alarms import Handlers, alarm
from tests.support.daemons import Daemon, StartDaemon
from tests.support.threads import SECONDS, running
from tools.stage import ROOT


@pytest.fixture
def path(shared_bus: Daemon) -> str:
    return shared_bus.path


def message(item: object) -> Message:
    assert isinstance(item, Message), item
    return item


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("background", [False, True])
def test_handlers_and_threads_lose_and_reorder_nothing(path: str, *, gather: bool, background: bool) -> None:
    """A handler publishes at any point of a program whose threads publish, call and receive. Each keeps the order of its messages."""
    rounds, signals = 1_000, 300
    with (
        Bus.connect(path, timeout=SECONDS, gather=gather, background=background) as bus,
        bus.subscribe("own") as own,
        Bus.connect(path) as other,
        other.subscribe("from/") as received,
    ):
        numbers = itertools.count()

        def handle() -> None:
            for _ in range(2):
                bus.publish("from/handler", str(next(numbers)))

        def work(name: int) -> None:
            for number in range(rounds):
                bus.publish(f"from/{name}", str(number))
                if number % 10 == 0:
                    bus.ping()

        def receive() -> None:
            assert [int(message(own.receive(SECONDS)).payload) for _ in range(rounds)] == list(range(rounds))

        with running(partial(work, 1), partial(work, 2), receive), Handlers(handle, most=1) as handlers:  # a nested one would overtake
            sent = 0
            while sent < rounds or handlers.done < signals:
                if sent < rounds:
                    bus.publish("own", str(sent))
                bus.publish("from/main", str(sent))
                if sent % 3 == 0:
                    bus.ping()
                sent += 1
        bus.ping()
        found: dict[str, list[int]] = defaultdict(list)
        expected = {"from/handler": next(numbers), "from/main": sent, "from/1": rounds, "from/2": rounds}
        for _ in range(sum(expected.values())):
            item = message(received.receive(SECONDS))
            found[item.key].append(int(item.payload))
    assert found == {key: list(range(count)) for key, count in expected.items()}


@pytest.mark.parametrize("is_iterated", [False, True])
def test_handlers_neither_change_nor_overtake_what_the_call_receives(path: str, *, is_iterated: bool) -> None:
    with Bus.connect(path, timeout=SECONDS) as bus, bus.subscribe("a") as subscription, Bus.connect(path) as publisher:

        def publish() -> None:
            for number in range(3_000):
                publisher.publish("a", str(number))
                publisher.ping()  # so that the other program often waits for the next one

        received: list[int] = []
        messages = iter(subscription) if is_iterated else iter(lambda: message(subscription.receive()), None)
        with running(publish), Handlers(lambda: bus.publish("b"), 0.000_3):
            while len(received) < 3_000:
                received.append(int(next(messages).payload))
        assert received == list(range(3_000))


def test_a_handler_publishes_in_the_middle_of_an_attempt_to_connect(daemon: StartDaemon) -> None:
    """The message goes to the new bus, once."""
    first = daemon("-g", "-o")
    with Bus.connect(first.path, reconnect=True, timeout=SECONDS) as bus, bus.subscribe("a") as subscription:
        first.stop()
        command = first.process.args
        assert isinstance(command, list)
        with pytest.raises(Disconnected):
            bus.ping()
        numbers = itertools.count()

        def handle() -> None:
            if bus.state == "reconnecting":
                bus.publish("a", str(next(numbers)))

        second: list[subprocess.Popen[bytes]] = []
        threading.Timer(0.2, lambda: second.append(start(command))).start()
        with Handlers(handle, 0.02) as handlers:
            assert isinstance(subscription.receive(SECONDS), Reconnected)
        assert handlers.done
        count = next(numbers)
        assert [int(message(subscription.receive(SECONDS)).payload) for _ in range(count)] == list(range(count))
        bus.ping()
        assert bus.statistics.reconnects == 1
    second[0].terminate()
    assert second[0].wait(SECONDS) == 0


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the bus again."""
    return subprocess.Popen(command, cwd="/", env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)


def test_a_signal_handler_closes_the_bus_that_its_thread_reads(path: str) -> None:
    with Bus.connect(path) as bus, bus.subscribe("a") as subscription, alarm(bus.close, 0.1):
        assert list(subscription) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a destructor
@pytest.mark.parametrize("gather", [False, True])
def test_an_interrupt_at_any_instruction_leaves_the_bus_usable(path: str, *, gather: bool) -> None:
    """An exception of a signal handler may come between any two instructions; the next call of this or another thread goes on."""
    is_armed = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal is_armed
        is_armed = False
        raise KeyboardInterrupt

    with Bus.connect(path, timeout=SECONDS, gather=gather) as bus, bus.subscribe("a") as subscription:
        interrupts = 0
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for number in range(1_000):
                with suppress(KeyboardInterrupt):  # not raised if it came in a destructor
                    is_armed = True
                    signal.setitimer(signal.ITIMER_REAL, 0.000_05 + number % 100 * 0.000_002)
                    while is_armed:
                        bus.publish("b")
                        with suppress(TimedOut):
                            subscription.receive(0)
                interrupts += not is_armed
        finally:
            signal.signal(signal.SIGALRM, before)
        assert interrupts == 1_000
        bus.publish("a", "after")
        assert next_message(subscription) == b"after"
        with running(lambda: bus.publish("a", "by another thread")):
            assert next_message(subscription) == b"by another thread"


def next_message(subscription: Subscription) -> bytes:
    """Return the payload of the next message. A gap may precede it: a packet is lost if the exception comes while it is received."""
    item = subscription.receive(SECONDS)
    while isinstance(item, Gap):
        assert item == Gap(0)
        item = subscription.receive(SECONDS)
    return message(item).payload


def receive_interrupted(subscription: Subscription) -> None:
    """Receive, and be interrupted by SIGALRM soon."""
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    subscription.receive(SECONDS)


def test_a_keyboard_interrupt_leaves_the_bus_usable(path: str) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with Bus.connect(path) as bus, bus.subscribe("a") as first, bus.subscribe("b") as second:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with running(lambda: message(second.receive(SECONDS))):
                for _ in range(5):
                    with pytest.raises(KeyboardInterrupt):
                        receive_interrupted(first)
                bus.publish("b")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert bus.ping() > 0
