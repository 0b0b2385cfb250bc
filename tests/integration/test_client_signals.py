"""Signal handlers use, close and interrupt a ``Bus``."""

from __future__ import annotations

import itertools
import signal
import stat
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sbusd.client import Bus, Disconnected, Gap, Message, Reconnected, Subscription, TimedOut
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
def test_signal_handlers_use_the_bus_that_they_interrupt(path: str, *, gather: bool) -> None:
    """A handler publishes and calls at any point of a program that does the same with two threads, or it gets RuntimeError."""
    with (
        Bus.connect(path, timeout=SECONDS, gather=gather) as bus,
        Bus.connect(path) as other,
        other.subscribe("from/handler") as subscription,
    ):
        numbers, published = itertools.count(), []
        is_over = threading.Event()

        def use_bus() -> None:
            number = next(numbers)
            bus.publish("from/handler", str(number))
            published.append(number)  # perhaps after those of a handler that interrupts this one
            bus.ping()

        def work() -> None:
            while not is_over.is_set():
                bus.publish("b")
                bus.ping()

        with running(work):
            end = time.monotonic() + SECONDS
            with Handlers(use_bus):
                while len(published) < 100 and time.monotonic() < end:
                    bus.publish("a")
                    bus.ping()
            is_over.set()
        assert len(published) >= 100
        received = [int(message(subscription.receive(SECONDS)).payload) for _ in published]
        assert sorted(received) == sorted(published)


@pytest.mark.parametrize("seconds", [0.000_3, 0.002])
def test_a_call_ends_although_a_handler_has_read_its_response(path: str, seconds: float) -> None:
    """It would wake only by the response to another call, and the program has one thread."""
    with Bus.connect(path, timeout=SECONDS) as bus, Handlers(bus.ping, seconds) as handlers:
        end = time.monotonic() + SECONDS
        while handlers.done < 300:
            assert time.monotonic() < end
            bus.ping()


@pytest.mark.parametrize("is_iterated", [False, True])
def test_handlers_neither_change_nor_overtake_what_the_call_receives(path: str, *, is_iterated: bool) -> None:
    with Bus.connect(path, timeout=SECONDS) as bus, bus.subscribe("a") as subscription, Bus.connect(path) as publisher:

        def publish() -> None:
            for number in range(3_000):
                publisher.publish("a", str(number))
                publisher.ping()  # so that the other program often waits for the next one

        received: list[int] = []
        messages = iter(subscription) if is_iterated else iter(lambda: message(subscription.receive()), None)
        with running(publish), Handlers(bus.ping, 0.000_3):
            while len(received) < 3_000:
                received.append(int(next(messages).payload))
        assert received == list(range(3_000))


def open_sockets() -> int:
    """Return how many sockets this process has."""
    links = Path("/proc/self/fd").iterdir()
    return sum(stat.S_ISSOCK(link.stat().st_mode) for link in list(links) if link.exists())


def test_a_handler_connects_again_in_the_middle_of_an_attempt(daemon: StartDaemon) -> None:
    """There is one new connection, and the call that was interrupted uses it."""
    first = daemon("-g", "-o")
    with Bus.connect(first.path, reconnect=True, timeout=SECONDS) as bus, bus.subscribe("a") as subscription:
        before = open_sockets()
        first.stop()
        assert isinstance(first.process.args, list)
        with pytest.raises(Disconnected):
            bus.ping()
        with Handlers(bus.ping, 0.02) as handlers:
            second = subprocess.Popen(first.process.args, cwd="/", env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
            while not handlers.done:
                bus.ping()
        bus.publish("a", "again")
        assert isinstance(subscription.receive(SECONDS), Reconnected)
        assert message(subscription.receive(SECONDS)).payload == b"again"
        assert open_sockets() == before
        assert bus.statistics.reconnects == 1
        subscription.close()
        bus.ping()
        bus.publish("a")
        bus.ping()
        assert bus.statistics.unclaimed == 0  # the pattern was stored once
    second.terminate()
    assert second.wait(SECONDS) == 0


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


@pytest.mark.parametrize("name", ["fileno", "ping", "flush", "close", "subscribe"])
def test_a_call_after_an_interrupted_exit_goes_on(path: str, name: str) -> None:
    """As when an exception of a handler comes after a call has entered, and before it can leave."""
    uses = {"subscribe": lambda bus: bus.subscribe("a").close()}
    with Bus.connect(path, timeout=SECONDS) as bus:
        bus.ping()
        for is_shared in (False, True):
            bus._link.threads.enter()
            uses.get(name, lambda bus: getattr(bus, name)())(bus)
            if name == "close":
                break
            if not is_shared:
                with running(bus.ping):  # from now on there is a lock
                    pass
        assert bus._link.threads.inside == bus._link.threads.alone == 0


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
