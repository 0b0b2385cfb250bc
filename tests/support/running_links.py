"""A link in a thread of its own, for tests with real buses and networks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType

from sbus_services.link.network.streams import Writable
from sbus_services.link.rules import Rules
from sbus_services.link.service import Link, RunningNetwork

TIMEOUT_SECONDS = 120.0

MakeNetwork = Callable[[Writable, Callable[[str], None]], RunningNetwork]


class RunningLink:
    """A link that runs until it is stopped; a context. *make_network* also gets the function for reports."""

    def __init__(self, rules: Rules, address: str, make_network: MakeNetwork) -> None:
        self.reports: list[str] = []
        self.link: Link | None = None
        self.error: BaseException | None = None
        self._arguments = rules, address, make_network
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main)

    def __enter__(self) -> RunningLink:
        self._thread.start()
        assert self._started.wait(TIMEOUT_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        if kind is None and self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Stop the link."""
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def wait(self, condition: Callable[[Link], object]) -> None:
        """Wait until *condition* holds."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while self.link is None or not condition(self.link):
            assert time.monotonic() < end, (self.reports[-20:], self.link and self.link.state())
            assert self.error is None, self.error
            time.sleep(0.01)

    def wait_for_hosts(self, *names: str) -> None:
        """Wait until exactly these other hosts are alive."""
        self.wait(lambda link: link.live_hosts() == sorted(names))

    def synchronize(self) -> None:
        """Wait until all live hosts have confirmed what the clients of this host want."""
        assert self.link is not None
        assert self._loop is not None
        done = threading.Event()
        link = self.link
        self._loop.call_soon_threadsafe(link.synchronize, done.set)
        assert done.wait(TIMEOUT_SECONDS), self.reports[-20:]

    def _main(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            try:
                asyncio.run(self._run())
            except Exception as error:
                self.error = error
            finally:
                self._started.set()

    async def _run(self) -> None:
        rules, address, make_network = self._arguments
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.link = Link(rules, address, lambda writable: make_network(writable, self.reports.append), report=self.reports.append)
        self._started.set()
        await self.link.run()
