"""Signal handlers use, close and interrupt a ``Bus``."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from contextlib import suppress

import pytest

from sbusd.client import Bus, Message, TimedOut
from tests.support.daemons import StartDaemon
from tests.support.threads import SECONDS, running


@pytest.fixture
def path(daemon: StartDaemon) -> str:
    return daemon("-g", "-o").path


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
        running_handlers: list[int] = []

        def handle(signum: int, frame: object) -> None:
            if len(running_handlers) == 5:  # on a slow machine, signals come faster than their handlers end
                return
            number = next(numbers)
            running_handlers.append(number)
            try:
                bus.publish("from/handler", str(number))
                published.append(number)  # perhaps after those of a handler that interrupts this one
                bus.ping()
            except RuntimeError as error:
                if "has interrupted a call of the same bus" not in str(error):
                    raise
            finally:
                running_handlers.pop()

        before = signal.signal(signal.SIGALRM, handle)
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                bus.publish("b")
                bus.ping()

        try:
            with running(work):
                signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
                end = time.monotonic() + SECONDS
                while len(published) < 100 and time.monotonic() < end:
                    bus.publish("a")
                    bus.ping()
                signal.setitimer(signal.ITIMER_REAL, 0)
                is_over.set()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(published) >= 100
        received = [int(message(subscription.receive(SECONDS)).payload) for _ in published]
        assert sorted(received) == sorted(published)


def test_a_signal_handler_closes_the_bus_that_its_thread_reads(path: str) -> None:
    with Bus.connect(path) as bus, bus.subscribe("a") as subscription:
        before = signal.signal(signal.SIGALRM, lambda number, frame: bus.close())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert list(subscription) == []
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


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
        assert message(subscription.receive(SECONDS)).payload == b"after"
        with running(lambda: bus.publish("a", "by another thread")):
            assert message(subscription.receive(SECONDS)).payload == b"by another thread"


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


def test_a_keyboard_interrupt_leaves_the_bus_usable(path: str) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with Bus.connect(path) as bus, bus.subscribe("a") as first, bus.subscribe("b") as second:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            with running(lambda: message(second.receive(SECONDS))):
                for _ in range(5):
                    signal.setitimer(signal.ITIMER_REAL, 0.05)
                    with pytest.raises(KeyboardInterrupt):
                        first.receive(SECONDS)
                bus.publish("b")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert bus.ping() > 0
