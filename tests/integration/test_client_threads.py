"""Several threads use one ``Bus``: nothing is lost, duplicated or reordered, and no thread waits for another's messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from sbus import Bus, Closed, Disconnected, InboxFull, Message, Reconnected, RemoteRefusal, TimedOut
from tests.support.daemons import Daemon, StartDaemon
from tests.support.threads import SECONDS, running
from tools.stage import ROOT

THREADS = 8


@pytest.fixture
def path(shared_bus: Daemon) -> str:
    return shared_bus.path


def message(item: object) -> Message:
    assert isinstance(item, Message), item
    return item


def in_threads(*works: Callable[[], object]) -> None:
    with running(*works):
        pass


@contextmanager
def echoing(path: str) -> Iterator[None]:
    """Serve the command ``echo``."""
    server, ready = Bus.connect(path), threading.Event()
    server.service("echo")(lambda request: request.data)
    thread = threading.Thread(target=server.serve, kwargs={"ready": ready.set})
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield
    finally:
        server.close()
        thread.join(SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("coalescing", [False, True])
@pytest.mark.parametrize("background", [False, True])
def test_threads_that_publish_and_call(path: str, *, coalescing: bool, background: bool, gather: bool) -> None:
    """Each thread publishes numbers and calls; every number arrives once, in order, and every response is that of its request."""
    rounds = 150

    def work(bus: Bus, name: int) -> None:
        for number in range(0, rounds * 10, 10):
            if coalescing:
                with bus.coalesce():
                    for step in range(10):
                        bus.publish(f"numbers/{name}", str(number + step))
            else:
                for step in range(10):
                    bus.publish(f"numbers/{name}", str(number + step))
            text = f"{name} {number}".encode()
            assert bytes(bus.call("echo", text, timeout=SECONDS)) == text
            assert bus.publish("unused", receipt=True) == 0

    received = defaultdict(list)
    with (
        echoing(path),
        Bus.connect(path) as receiver,
        receiver.subscribe("numbers/") as numbers,
        Bus.connect(path, background=background, gather=gather, timeout=SECONDS) as bus,
    ):
        with running(*(partial(work, bus, name) for name in range(THREADS))):
            for _ in range(THREADS * rounds * 10):
                item = message(numbers.receive(SECONDS))
                received[item.key].append(int(item.payload))
        receiver.ping()
        with pytest.raises(TimedOut):
            numbers.receive(0)
    assert dict(received) == {f"numbers/{name}": list(range(rounds * 10)) for name in range(THREADS)}


@pytest.mark.parametrize("batches", [False, True])
def test_each_thread_receives_from_its_own_subscription(path: str, *, batches: bool) -> None:
    count = 3_000
    with Bus.connect(path) as bus, Bus.connect(path) as publisher:
        subscriptions = [bus.subscribe(f"to/{name}") for name in range(THREADS)]

        def receive(name: int) -> None:
            numbers: list[int] = []
            lists = subscriptions[name].batches() if batches else ([item] for item in subscriptions[name])
            for items in lists:
                numbers += [int(message(item).payload) for item in items]
                if len(numbers) >= count:
                    break
            assert numbers == list(range(count))

        with running(*(partial(receive, name) for name in range(THREADS))):
            for number in range(count):
                for name in range(THREADS):
                    publisher.publish(f"to/{name}", str(number))


@pytest.mark.parametrize("way", ["iterate", "receive", "batches", "mixed"])
def test_threads_share_a_subscription(path: str, way: str) -> None:
    """Each message is received by one of them, and each thread sees increasing numbers."""
    count, workers = 4_000, 4
    with Bus.connect(path) as bus, Bus.connect(path) as publisher, bus.subscribe("jobs") as jobs:
        taken: list[list[int]] = [[] for _ in range(workers)]

        def work(name: int) -> None:
            kind = ("iterate", "receive", "batches")[name % 3] if way == "mixed" else way
            try:
                if kind == "iterate":
                    for item in jobs:
                        taken[name].append(int(message(item).payload))
                while kind == "receive":
                    taken[name].append(int(message(jobs.receive()).payload))
                if kind == "batches":
                    for items in jobs.batches(16):
                        taken[name] += [int(message(item).payload) for item in items]
            except Closed:
                return

        with running(*(partial(work, name) for name in range(workers))):
            with publisher.coalesce():
                for number in range(count):
                    publisher.publish("jobs", str(number))
            end = time.monotonic() + SECONDS
            while sum(map(len, taken)) < count and time.monotonic() < end:
                time.sleep(0.01)
            bus.close()
    assert Counter(number for numbers in taken for number in numbers) == Counter(range(count))
    assert all(numbers == sorted(numbers) for numbers in taken)


def test_a_second_thread_joins_at_any_instruction(path: str) -> None:
    """Until then the first thread takes no lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_001)
    try:
        with Bus.connect(path) as receiver, receiver.subscribe("n") as numbers:
            for _ in range(150):
                with Bus.connect(path, timeout=SECONDS) as bus:
                    bus.publish("n", "0")
                    joins = threading.Barrier(2)

                    def join(bus: Bus = bus, joins: threading.Barrier = joins) -> None:
                        joins.wait(SECONDS)
                        assert bus.whoami().startswith("!/cred/")
                        bus.publish("other")

                    with running(join):
                        joins.wait(SECONDS)
                        for number in range(1, 50):
                            bus.publish("n", str(number))
                    assert bus.ping() > 0
                assert [message(numbers.receive(SECONDS)).payload for _ in range(50)] == [b"%d" % number for number in range(50)]
    finally:
        sys.setswitchinterval(before)


def test_a_thread_that_waits_for_messages_stops_nobody(path: str) -> None:
    with (
        Bus.connect(path) as bus,
        bus.subscribe("quiet") as quiet,
        bus.subscribe("loud") as loud,
        running(lambda: message(quiet.receive(SECONDS))),
    ):
        for number in range(100):
            bus.publish("loud", str(number))
            assert message(loud.receive(SECONDS)).payload == b"%d" % number
            assert bus.whoami().startswith("!/cred/")
        bus.publish("quiet")


def test_a_thread_that_does_not_receive_stops_nobody(path: str) -> None:
    """The thread that has read everything so far is busy; another one reads for itself."""
    with Bus.connect(path) as bus, bus.subscribe("a") as first, bus.subscribe("b") as second:
        is_busy, is_over = threading.Event(), threading.Event()

        def busy() -> None:
            for item in first:
                assert message(item).payload == b"work"
                is_busy.set()
                assert is_over.wait(SECONDS)
                return

        def other() -> None:
            assert message(second.receive(SECONDS)).payload == b"hello"
            is_over.set()

        with running(busy, other):
            bus.publish("a", "work")
            assert is_busy.wait(SECONDS)
            bus.publish("b", "hello")


def test_closing_ends_all_waits(path: str) -> None:
    with Bus.connect(path) as bus:
        subscriptions = [bus.subscribe(str(number)) for number in range(4)]
        waits = threading.Barrier(len(subscriptions) + 1)

        def receive(number: int) -> None:
            waits.wait(SECONDS)
            if number % 2:
                with pytest.raises(Closed):
                    subscriptions[number].receive()
            else:
                assert list(subscriptions[number]) == []

        with running(*(partial(receive, number) for number in range(len(subscriptions)))):
            waits.wait(SECONDS)
            bus.close()
        with pytest.raises(Closed):
            bus.ping()


def test_closing_a_subscription_ends_the_wait_for_it(path: str) -> None:
    with Bus.connect(path) as bus:
        first, second = bus.subscribe("first"), bus.subscribe("second")
        with running(lambda: list(first), lambda: list(second)):
            for subscription in (first, second):
                subscription.close()
        assert bus.ping() > 0


def test_the_descriptor_of_a_closed_bus_is_closed(path: str) -> None:
    """Also when a thread waits on it, and as soon as that thread has returned."""
    bus = Bus.connect(path)
    subscription, descriptor = bus.subscribe("a"), bus.fileno()
    with running(lambda: list(subscription)):
        bus.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_full_subscription_waits_for_its_thread(path: str) -> None:
    """A thread that reads its own subscription waits until the thread of the full one has made room."""
    with (
        Bus.connect(path, queue_packets=4, batching=False) as bus,
        bus.subscribe("slow") as slow,
        bus.subscribe("fast") as fast,
        Bus.connect(path) as publisher,
    ):
        publisher.publish("slow", "first")
        begun, proceed = threading.Event(), threading.Event()

        def receive_slowly() -> None:
            numbers = []
            for item in slow:
                numbers.append(message(item).payload)
                begun.set()
                assert proceed.wait(SECONDS)
                if numbers[-1] == b"last":
                    break
            assert numbers == [b"first", *(b"%d" % number for number in range(20)), b"last"]

        with running(receive_slowly):
            assert begun.wait(SECONDS)
            for number in range(20):
                publisher.publish("slow", str(number))
            publisher.publish("slow", "last")
            publisher.publish("fast")
            threading.Timer(0.2, proceed.set).start()
            assert message(fast.receive(SECONDS)).key == "fast"


def test_a_full_subscription_that_no_thread_reads_is_an_error(path: str) -> None:
    with (
        Bus.connect(path, queue_packets=4, batching=False) as bus,
        bus.subscribe("slow"),
        bus.subscribe("fast") as fast,
    ):
        for _ in range(8):
            bus.publish("slow")
        bus.publish("fast")
        with pytest.raises(InboxFull):
            fast.receive(SECONDS)


def test_timeouts_are_those_of_each_thread(path: str) -> None:
    with (
        Bus.connect(path) as bus,
        bus.subscribe("a") as first,
        bus.subscribe("b") as second,
        running(lambda: message(first.receive(SECONDS))),
    ):
        begun = time.monotonic()
        for seconds in (0.2, 0):
            with pytest.raises(TimedOut):
                second.receive(seconds)
        assert time.monotonic() - begun >= 0.2
        bus.publish("a")


def test_all_threads_go_on_after_the_bus_has_restarted(daemon: StartDaemon) -> None:
    """Every thread publishes until its own message of the new connection has arrived."""
    first = daemon("-g", "-o")
    bus = Bus.connect(first.path, reconnect=True, timeout=SECONDS)
    subscriptions = [bus.subscribe(f"own/{name}") for name in range(4)]
    begun = threading.Barrier(len(subscriptions) + 1)

    def work(name: int) -> None:
        begun.wait(SECONDS)
        item = subscriptions[name].receive(SECONDS)
        assert isinstance(item, Reconnected)
        while not isinstance(item, Message):
            bus.publish(f"own/{name}", "again")
            item = subscriptions[name].receive(SECONDS)  # Reconnected if the message went to a bus that was ending
        assert item.payload == b"again"
        assert bus.whoami().startswith("!/cred/")

    with running(*(partial(work, name) for name in range(4))):
        begun.wait(SECONDS)
        first.stop()
        second = subprocess.Popen(first.process.args, cwd="/", env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    second.terminate()
    assert second.wait(SECONDS) == 0
    assert bus.statistics.reconnects <= 2  # together, not each of them; a bus that is ending may still take one connection
    bus.close()


def test_all_threads_learn_of_the_end_of_the_bus(daemon: StartDaemon) -> None:
    server = daemon("-g", "-o")
    bus = Bus.connect(server.path)
    subscriptions = [bus.subscribe(f"own/{name}") for name in range(4)]
    waits = threading.Barrier(len(subscriptions) + 1)

    def work(name: int) -> None:
        waits.wait(SECONDS)
        with pytest.raises(Disconnected):
            subscriptions[name].receive(SECONDS)

    with running(*(partial(work, name) for name in range(4))):
        waits.wait(SECONDS)
        server.stop()
    bus.close()


def test_an_error_belongs_to_the_call_that_caused_it(path: str) -> None:
    """Refusals of one thread do not make others fail."""
    with Bus.connect(path, timeout=SECONDS) as bus:

        def refused() -> None:
            for _ in range(200):
                with pytest.raises(RemoteRefusal, match="EPERM"):
                    bus.control("lost/for", "nonsense")

        def answered() -> None:
            for number in range(200):
                with bus.subscribe(f"own/{number}"):
                    assert bus.whoami().startswith("!/cred/")

        in_threads(refused, answered, refused, answered)


@pytest.mark.parametrize("background", [False, True])
def test_a_child_is_forked_while_other_threads_use_the_bus(path: str, *, background: bool) -> None:
    with Bus.connect(path, reconnect=True, timeout=SECONDS, background=background) as bus, bus.subscribe("a") as subscription:
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                bus.publish("b", "x")
                bus.whoami()

        def receive() -> None:
            for item in subscription:
                if message(item).payload == b"end":
                    return

        with running(publish, receive):
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    signal.alarm(int(SECONDS))
                    is_right = bus.whoami().endswith(f"/{os.getpid()}")
                    os._exit(0 if is_right else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            is_over.set()
            bus.publish("a", "end")
