"""A process that forks after it has connected: the child does not use the connection of its parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

import pytest

from sbus import AsyncBus, Bus, ForkedError, Message, Reconnected, TimedOut
from tests.support.daemons import Daemon
from tools.stage import ROOT

SECONDS = 60.0


@pytest.fixture
def path(shared_bus: Daemon) -> str:
    return shared_bus.path


def in_child(act: Callable[[], None]) -> None:
    """Call *act* in a child process, and fail if it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4_000:])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    assert not said, said


def test_a_child_gets_an_error_and_the_parent_goes_on(path: str) -> None:
    with Bus.connect(path) as bus, bus.subscribe("a") as subscription:
        bus.publish("a", "before")
        bus.ping()

        def act() -> None:
            for use in (
                bus.ping,
                bus.fileno,
                subscription.receive,
                lambda: bus.publish("a", "child"),
                lambda: bus.subscribe("b"),
                bus.flush,
            ):
                with pytest.raises(ForkedError, match="belongs to the parent process: connect again"):
                    use()
            bus.close()

        in_child(act)
        bus.publish("a", "after")
        assert [subscription.receive(SECONDS).payload for _ in range(2)] == [b"before", b"after"]  # type: ignore[union-attr]


def test_what_the_parent_has_gathered_is_sent_once(path: str) -> None:
    with Bus.connect(path) as other, other.subscribe("a") as received, Bus.connect(path, reconnect=True) as bus:
        bus.ping()
        with bus.coalesce():
            bus.publish("a", "gathered")
            in_child(bus.flush)
            in_child(bus.close)
        bus.publish("a", "last")
        assert [received.receive(SECONDS).payload for _ in range(2)] == [b"gathered", b"last"]  # type: ignore[union-attr]


def test_a_child_sends_nothing_that_a_gathering_parent_has(path: str) -> None:
    """The child gathers by itself, too, and both send their own messages once."""
    with Bus.connect(path) as other, other.subscribe("a", "b") as received, Bus.connect(path, reconnect=True, gather=True) as bus:
        bus.ping()
        bus._link.clock = lambda: 0.0  # only this test flushes
        bus.publish("a", "first")
        bus.publish("a", "gathered")
        assert bus._session.outgoing

        def act() -> None:
            bus._link.clock = time.monotonic
            for number in range(100):
                bus.publish("b", str(number))
            bus.close()

        in_child(act)
        in_child(bus.close)
        bus.flush()
        bus.publish("a", "last", receipt=True)
        items = [received.receive(SECONDS) for _ in range(103)]
        assert [item.payload for item in items if item.key == "a"] == [b"first", b"gathered", b"last"]  # type: ignore[union-attr]
        assert [item.payload for item in items if item.key == "b"] == [b"%d" % number for number in range(100)]  # type: ignore[union-attr]
        other.ping()
        with pytest.raises(TimedOut):
            received.receive(0)


def test_with_reconnect_a_child_has_its_own_connection(path: str) -> None:
    with Bus.connect(path, reconnect=True) as bus, bus.subscribe("a") as subscription:
        own = bus.address
        bus.publish("a", "for the parent")
        bus.ping()

        def act() -> None:
            assert isinstance(subscription.receive(SECONDS), Reconnected)
            assert bus.address != own
            bus.publish("a", "for both")
            item = subscription.receive(SECONDS)
            assert isinstance(item, Message)
            assert item.payload == b"for both"

        in_child(act)
        assert bus.address == own
        assert [subscription.receive(SECONDS).payload for _ in range(2)] == [b"for the parent", b"for both"]  # type: ignore[union-attr]


def test_a_bus_that_is_closed_or_was_never_used_stays_so(path: str) -> None:
    bus = Bus.connect(path)
    bus.close()

    def act() -> None:
        with pytest.raises(RuntimeError, match="the bus is closed"):
            bus.ping()

    in_child(act)


def test_processes_do_not_share_memory_for_packets(path: str) -> None:
    """All of them receive at the same time."""
    with Bus.connect(path, reconnect=True) as bus:
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                os._exit(any(bus.publish("unused", receipt=True) != 0 for _ in range(300)))
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


FORKING_THREADS = """
import os, sys, threading
from sbus import Bus

def fork_and_connect():
    for _ in range(20):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with Bus.connect(sys.argv[1], timeout=60) as bus:
            bus.ping()
    done.append(threading.current_thread())

done = []
threads = [threading.Thread(target=fork_and_connect, daemon=True) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
sys.exit(len(done) != len(threads))
"""


def test_threads_fork_and_connect_at_the_same_time(path: str) -> None:
    """Each fork takes the locks of all connections, and must neither wait for one that waits for it nor keep a lock.

    In a process of its own: 240 forks of pytest take fifteen seconds of processor time.
    """
    command = [sys.executable, "-c", FORKING_THREADS, path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1_000)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_loop_that_forks_keeps_its_connection(path: str) -> None:
    async def main() -> None:
        async with AsyncBus.connect(path) as bus, bus.subscribe("a") as subscription:

            def act() -> None:
                async def use() -> None:
                    with pytest.raises(ForkedError):
                        await bus.publish("a", "child")
                    with pytest.raises(ForkedError):
                        await bus.ping()
                    await bus.close()

                asyncio.events._set_running_loop(None)
                asyncio.new_event_loop().run_until_complete(use())

            in_child(act)
            await bus.publish("a", "parent")
            item = await asyncio.wait_for(subscription.receive(), SECONDS)
            assert isinstance(item, Message)
            assert item.payload == b"parent"

    asyncio.run(main())


_shared: Bus | None = None


def _publish(number: int) -> int | None:
    assert _shared is not None
    return _shared.publish("jobs", str(number), receipt=True)


def test_a_pool_of_processes_shares_a_bus_that_reconnects(path: str) -> None:
    """Each of the processes of a prefork server gets a connection of its own."""
    global _shared
    with Bus.connect(path) as other, other.subscribe("jobs") as received, Bus.connect(path, reconnect=True) as _shared:
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert pool.map(_publish, range(60)) == [1] * 60
        found = sorted(int(received.receive(SECONDS).payload) for _ in range(60))  # type: ignore[union-attr]
        assert found == list(range(60))
        assert _shared.publish("jobs", "60", receipt=True) == 1
