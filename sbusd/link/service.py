"""The link: the local bus, the network, and the protocol between them, until it is cancelled. Spec: sbus-link(8)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

from sbusd.link.bus import BusConnection
from sbusd.link.network.stall import Writable
from sbusd.link.ports import Network, NetworkEvents
from sbusd.link.rules import Rules
from sbusd.link.session import Session

STATUS_SECONDS = 1.0
"""Interval of status and sign of life."""


class RunningNetwork(Network, Protocol):
    """A network that connects by itself."""

    async def run(self, events: NetworkEvents) -> None:
        """Connect, and reconnect without end, until cancelled."""


class ScheduledSession(Session):
    """A session that is ticked after each group of events, and when something is due."""

    _is_scheduled = False
    _timer: asyncio.TimerHandle | None = None

    def schedule(self) -> None:
        """Tick in the next turn of the event loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self.tick(loop.time())
        if self._timer is not None:
            self._timer.cancel()
        due = self.next_tick()
        self._timer = None if due is None else loop.call_at(due, self.schedule)

    def connected(self) -> None:
        """Note the event, and schedule a tick."""
        super().connected()
        self.schedule()

    def disconnected(self, reason: str) -> None:
        """Note the event, and schedule a tick."""
        super().disconnected(reason)
        self.schedule()

    def received(self, subject: str, head: bytes, body: bytes) -> None:
        """Note the event, and schedule a tick."""
        super().received(subject, head, body)
        self.schedule()

    def barrier_passed(self, number: int) -> None:
        """Note the event, and schedule a tick."""
        super().barrier_passed(number)
        self.schedule()

    def message(self, key: bytes, packet: bytes, sender_id: int, credentials: bytes) -> None:
        """Note the event, and schedule a tick."""
        super().message(key, packet, sender_id, credentials)
        self.schedule()

    def subscribed(self, client_id: int, pattern: bytes) -> None:
        """Note the event, and schedule a tick."""
        super().subscribed(client_id, pattern)
        self.schedule()

    def unsubscribed(self, client_id: int, pattern: bytes) -> None:
        """Note the event, and schedule a tick."""
        super().unsubscribed(client_id, pattern)
        self.schedule()

    def client_gone(self, client_id: int) -> None:
        """Note the event, and schedule a tick."""
        super().client_gone(client_id)
        self.schedule()

    def lost(self, count: int) -> None:
        """Note the event, and schedule a tick."""
        super().lost(count)
        self.schedule()

    def restarted(self) -> None:
        """Note the event, and schedule a tick."""
        super().restarted()
        self.schedule()

    def acknowledged(self, number: int) -> None:
        """Note the event, and schedule a tick."""
        super().acknowledged(number)
        self.schedule()


class Link:
    """One link. *make_network* gets what the network awaits between two reads; *report* gets lines for the log.

    *alive* gets the status, once a second.
    """

    def __init__(
        self,
        rules: Rules,
        address: str,
        make_network: Callable[[Writable], RunningNetwork],
        *,
        report: Callable[[str], None],
        alive: Callable[[str], object] = lambda _status: None,
    ) -> None:
        self._rules = rules
        self._bus = BusConnection(address, report)
        self._network = make_network(self._bus.writable)
        self._alive = alive
        self._session: ScheduledSession | None = None

    async def run(self) -> None:
        """Work until cancelled. A defect ends it with its exception."""
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def fail(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
            error = context.get("exception")
            if not failed.done():
                failed.set_exception(error if isinstance(error, Exception) else RuntimeError(str(context.get("message"))))

        loop.set_exception_handler(fail)
        session = self._session = ScheduledSession(self._rules, time.time_ns(), self._network, self._bus, loop.time())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._network.run(session))
            tasks.create_task(self._bus.run(session))
            tasks.create_task(self._live())
            tasks.create_task(_raise(failed))

    def synchronize(self, done: Callable[[], None]) -> None:
        """Call *done* once all live hosts have confirmed what clients of this host want. Raises OverflowError if too many calls wait."""
        if self._session is None or not self._session.sync(done):
            raise OverflowError("too many calls wait for other hosts; try again later")
        self._session.schedule()

    def state(self) -> dict[str, object]:
        """Return hosts and counters, ready for JSON."""
        session = self._session
        if session is None:
            return {}
        counters = asdict(session.counters)
        counters["bus_refusals"] = self._bus.refusals
        counters["discarded_messages"] = self._bus.discarded_messages
        return {"hosts": session.live_hosts(), "spooled_bytes": session.spooled_bytes, "counters": counters}

    async def _live(self) -> None:
        while True:
            hosts = self._session.live_hosts() if self._session is not None else []
            self._alive(f"{len(hosts)} other hosts" if len(hosts) != 1 else "1 other host")
            await asyncio.sleep(STATUS_SECONDS)


async def _raise(failed: asyncio.Future[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await failed
