"""The link: the local bus, the network, and the protocol between them, until it is cancelled. Spec: sbus-link(8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sbus.asyncio.blob_socket import AsyncBlobSocket
from sbus.bus_socket import bus_address
from sbus_programs.systemd.event_loop import first_defect, report_exhaustion
from sbus_services.link.administration import Administration, Event, Events, Status
from sbus_services.link.blobs import BlobCalls, BlobSource
from sbus_services.link.bus import BusConnection
from sbus_services.link.exchange import EXCHANGE_COUNTERS, LinkExchange
from sbus_services.link.message_runs import MessageRun
from sbus_services.link.network.counters import NetworkCounters, NetworkState
from sbus_services.link.network.streams import Writable
from sbus_services.link.ports import Network, NetworkEvents
from sbus_services.link.rules import Rules
from sbus_services.link.session import LinkSession
from sbus_services.link.subjects import Subjects

BLOB_SECONDS = 10.0
"""How long the local sbus-blob may take for a response."""

TURN_SECONDS = 1.0
"""Interval of events, status and sign of life."""


class RunningNetwork(Network, Protocol):
    """A network that connects by itself."""

    counters: NetworkCounters

    @property
    def state(self) -> NetworkState:
        """The present connection."""

    def backlog(self, subject: str) -> int:
        """Return the bytes that wait for the receivers of *subject*."""

    async def drained(self) -> None:
        """Return when the network takes more messages."""

    async def run(self, events: NetworkEvents) -> None:
        """Connect, and reconnect without end, until cancelled."""


class ScheduledSession(LinkSession):
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

    def messages(self, run: MessageRun) -> None:
        """Note the event, and schedule a tick."""
        super().messages(run)
        self.schedule()

    def subscribed(self, client_id: int, uid: int, pattern: bytes) -> None:
        """Note the event, and schedule a tick."""
        super().subscribed(client_id, uid, pattern)
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

    *transport* and the file *certificate* are for the state. *alive* gets the status once a second, *note* each event. The state is
    published every *state_seconds*. *charged* returns the user that is charged for a uid.
    """

    def __init__(
        self,
        rules: Rules,
        address: str,
        make_network: Callable[[Writable], RunningNetwork],
        *,
        report: Callable[[str], None],
        transport: str = "nats",
        certificate: Path | None = None,
        state_seconds: float = 10.0,
        alive: Callable[[str], object] = lambda _status: None,
        note: Callable[[Event], None] = lambda _event: None,
        charged: Callable[[int], int] = int,
    ) -> None:
        self._rules = rules
        self._address = address
        self._bus = BusConnection(address, self._drained, report)
        self._network = make_network(self._bus.writable)
        self._administration = Administration(address, self, report, charged)
        self._status = Status(rules, transport, certificate)
        self._events = Events()
        self._state_seconds = state_seconds
        self._alive = alive
        self._note = note
        self._charged = charged
        self._report = report
        self._refused: dict[str, tuple[int, int]] = {}
        """Refused frames of each host that are reported: malformed ones, and those of another version."""
        self._session: ScheduledSession | None = None

    async def run(self) -> None:
        """Work until cancelled. A defect ends it with its exception."""
        loop = asyncio.get_running_loop()
        failed = first_defect()
        report_exhaustion(self._report)
        session = self._session = ScheduledSession(
            self._rules,
            time.time_ns(),
            self._network,
            self._bus,
            loop.time(),
            note_loss=self._events.lost,
            note_namesake=self._report_namesake,
            charged=self._charged,
        )
        service = AsyncBlobSocket(bus_address(self._address or None), BLOB_SECONDS)
        subjects = Subjects(self._rules.realm, self._rules.host)
        self._source = BlobSource(self._rules.host, session.tickets, service)
        self._exchange = LinkExchange(session, self._source.answer, lambda host: self._network.backlog(subjects.direct(host)))
        self._blob_calls = BlobCalls(self._address, session.tickets, self._exchange, self._charged)
        session.questions = self._exchange
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._network.run(session))
                tasks.create_task(self._bus.run(session))
                tasks.create_task(self._administration.run())
                if any(rule.max_blob for rule in self._rules.imports):
                    tasks.create_task(self._blob_calls.run())
                tasks.create_task(self._turns(session))
                tasks.create_task(_wait(failed))
        finally:
            await self._exchange.close()
            self._source.close()
            service.close()

    def synchronize(self, done: Callable[[], None]) -> None:
        """Call *done* once all live hosts have confirmed what clients of this host want now. The caller bounds how many calls wait."""
        self._bus.after_events(_Synchronize(self, done))

    def cancel(self, done: Callable[[], None]) -> None:
        """Do not call *done*, which was given to :meth:`synchronize`."""
        self._bus.cancel(_Synchronize(self, done))
        if self._session is not None:
            self._session.cancel_sync(done)

    def begin_sync(self, done: Callable[[], None]) -> None:
        """Call *done* once all live hosts have confirmed what the session knows to be wanted."""
        if self._session is not None:
            self._session.sync(done)
            self._session.schedule()

    def state(self) -> bytes:
        """Return the state as JSON; empty before the start."""
        if self._session is None:
            return b"{}"
        counters = {"bus_refusals": self._bus.refusals, "discarded_messages": self._bus.discarded_messages, "blobs": self._blob_counters()}
        return self._status.state(self._session, self._network.state, self._network.counters, counters, asyncio.get_running_loop().time())

    def live_hosts(self) -> list[str]:
        """Return the names of the hosts that are alive, sorted."""
        return self._session.live_hosts() if self._session is not None else []

    def _blob_counters(self) -> dict[str, int]:
        """Return what was pulled, by this host and from it."""
        counted = dict.fromkeys(EXCHANGE_COUNTERS, 0) | self._exchange.counters
        sums = {"bytes_in": self._blob_calls.bytes_in, "bytes_out": self._source.bytes_out}
        return {"open": len(self._source), "tickets": len(self._session.tickets) if self._session else 0, **sums, **counted}

    async def _drained(self) -> None:
        await self._network.drained()

    async def _turns(self, session: ScheduledSession) -> None:
        """Publish what has happened, and the state, and report that the link is alive."""
        loop = asyncio.get_running_loop()
        state_at = loop.time()
        while True:
            hosts = session.live_hosts()
            network = self._network
            events = self._events.take(hosts, network.state, network.counters.last_error)
            for event in events:
                self._note(event)
            is_due = loop.time() >= state_at or any(key.startswith("link/host/") for key, _ in events)
            if is_due:
                state_at = loop.time() + self._state_seconds
            self._report_malformed(session)
            self._source.close_idle()
            self._alive(f"{len(hosts)} other hosts" if len(hosts) != 1 else "1 other host")
            await self._administration.publish(events, with_state=is_due)
            await asyncio.sleep(TURN_SECONDS)

    def _report_malformed(self, session: ScheduledSession) -> None:
        """Report the hosts that have sent frames since the last call that were refused."""
        refused = {name: (counters.malformed, counters.other_version) for name, counters in session.counters.hosts.items()}
        for name, (malformed, other_version) in refused.items():
            before = self._refused.get(name, (0, 0))
            if other_version > before[1]:
                self._report(f"host {name} has another version of sbus-link, so its frames are refused: all hosts need the same version")
            if malformed > before[0]:
                self._report(f"host {name} sends malformed frames, which are refused: is its sbus-link of the same version?")
        self._refused = refused

    def _report_namesake(self, name: str, other: str, used: str) -> None:
        """Report that two hosts have one name."""
        places = f"one is at {other or 'an unknown address'}, one at {used or 'an unknown address'}"
        self._report(
            f"two hosts have the name {name}: {places}. The messages of the one that started first are ignored: "
            "set another host in link.toml(5) of one of them"
        )


@dataclass(frozen=True, slots=True)
class _Synchronize:
    """What follows when the events before a call of `Link.synchronize` are reported; equal for equal calls."""

    link: Link
    done: Callable[[], None]

    def __call__(self) -> None:
        self.link.begin_sync(self.done)


async def _wait(failed: asyncio.Future[None]) -> None:
    """Raise the exception of *failed* as soon as it has one."""
    await failed
