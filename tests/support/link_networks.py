"""Runs an adapter of the link's network in a thread, if needed in a network namespace, and records its events."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

from pyroute2 import netns

from sbus_services.link.network.counters import NetworkCounters
from sbus_services.link.ports import Network, NetworkEvents

TIMEOUT_SECONDS = 120.0
"""When an event that has not come is a failure."""

T = TypeVar("T")


class RunnableNetwork(Network, Protocol):
    """An adapter."""

    counters: NetworkCounters

    async def run(self, events: NetworkEvents) -> None:
        """Run until cancelled."""


class RecordedEvents:
    """Implements `NetworkEvents`: everything that happened, in order."""

    def __init__(self) -> None:
        self.all: list[tuple[object, ...]] = []

    def connected(self) -> None:
        """Record it."""
        self.all.append(("connected",))

    def disconnected(self, reason: str) -> None:
        """Record it."""
        self.all.append(("disconnected", reason))

    def received(self, subject: str, head: bytes, body: bytes) -> None:
        """Record it."""
        self.all.append(("received", subject, head, body))

    def barrier_passed(self, number: int) -> None:
        """Record it."""
        self.all.append(("barrier", number))

    def rejected(self, reason: str) -> None:
        """Record it."""
        self.all.append(("rejected", reason))

    def of(self, kind: str) -> list[tuple[object, ...]]:
        """Return what was recorded of *kind*, without the kind."""
        return [each[1:] for each in list(self.all) if each[0] == kind]

    def texts(self, kind: str) -> str:
        """Return the texts of the events of *kind*."""
        return "\n".join(str(each[0]) for each in self.of(kind))

    @property
    def messages(self) -> list[tuple[object, ...]]:
        """Subject, head and body of each message."""
        return self.of("received")


class Gate:
    """A local bus that takes messages while it is open."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    async def writable(self) -> None:
        """Wait while it is closed."""
        await self._open.wait()

    def shut(self) -> None:
        """Close it."""
        self._open.clear()

    def open(self) -> None:
        """Open it."""
        self._open.set()


class RunningNetwork:
    """An adapter in a thread of its own; a context."""

    def __init__(self, make: Callable[[Callable[[str], None]], RunnableNetwork], namespace: str = "") -> None:
        """*make* returns the adapter; it is given the function for reports."""
        self.events = RecordedEvents()
        self.reports: list[str] = []
        self.network = make(self.reports.append)
        self.error: BaseException | None = None
        self._namespace = namespace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main)

    def __enter__(self) -> RunningNetwork:
        self._thread.start()
        assert self._started.wait(TIMEOUT_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop may have ended with an error
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        if kind is None and self.error is not None:
            raise self.error

    def call(self, function: Callable[[], T]) -> T:
        """Call *function* in the thread of the adapter, and return its result."""

        async def run() -> T:
            return function()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(TIMEOUT_SECONDS)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < end, (self.events.all[-20:], self.reports[-20:], self.network.counters)
            assert self.error is None, self.error
            time.sleep(0.01)

    def wait_for_connection(self, count: int = 1) -> None:
        """Wait until the network was connected for the *count*-th time."""
        self.wait(lambda: len(self.events.of("connected")) >= count)

    def subscribe(self, *subjects: str) -> None:
        """Subscribe, and return when the network has processed it."""

        def subscribe() -> None:
            for subject in subjects:
                self.network.subscribe(subject)

        self.call(subscribe)
        self.settle()

    def publish(self, subject: str, head: bytes, body: bytes) -> None:
        """Publish a message."""
        self.call(lambda: self.network.publish(subject, head, body))

    def settle(self) -> None:
        """Return when the network has processed everything sent before."""
        number = len(self.events.all) + 1_000_000
        self.call(lambda: self.network.barrier(number))
        self.wait(lambda: ("barrier", number) in self.events.all)
        self.events.all.remove(("barrier", number))

    def _main(self) -> None:
        """Run the adapter until it is cancelled."""
        if self._namespace:
            netns.setns(self._namespace)
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            return
        except BaseException as error:
            self.error = error
        finally:
            self._started.set()

    async def _run(self) -> None:
        """Run the adapter."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._started.set()
        await self.network.run(self.events)
