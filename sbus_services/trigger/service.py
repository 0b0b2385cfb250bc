"""The trigger on its bus: a connection for each rule, and one for what it reports. Spec: sbus-trigger(8).

The bus has a queue for each connection. So messages for one rule, however many, never displace those for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
from collections.abc import Callable, Sequence

from sbus import AsyncBus, Request
from sbus.asyncio.service_bus import ServiceBus
from sbus.errors import RemoteRefusal, SbusError
from sbus.items import Gap, Item, Message, Replaced
from sbus.protocol import controls
from sbus.protocol.credentials import MAX_NAME_BYTES
from sbus.protocol.envelope import start_command
from sbus.protocol.printable import printable
from sbus.rpc.caller_access import Allow
from sbus.rpc.service import MAX_CONCURRENT_HANDLERS
from sbus_programs.backoff import Attempts
from sbus_programs.config.trigger import TriggerRule, TriggerSettings
from sbus_programs.config.users import ChargedUsers
from sbus_programs.systemd.event_loop import first_defect
from sbus_services.trigger.jobs import RuleJobs
from sbus_services.trigger.message_files import MessageFiles
from sbus_services.trigger.report import FIRED_KEY, STATE_KEY, Report, state_of, totals_of
from sbus_services.trigger.rule_state import RuleState
from sbus_services.trigger.service_starts import ServiceStarts, StartBus, UnitManager

COMMAND = "trigger/status"

TURN_SECONDS = 1.0
"""Interval of the sign of life."""

ITEMS_PER_TURN = 64
"""Messages for one rule that are handled before those for others."""

QUEUE_PACKETS = 4_096
"""Messages for one rule that wait in the program; the bus has a queue of its own before it."""

QUEUE_BYTES = 8 << 20


class TriggerError(SbusError, ValueError):
    """The configuration does not fit the bus; the text is one line."""


class _Rule:
    """A rule, its counters, and its actions."""

    def __init__(self, rule: TriggerRule, manager: UnitManager, files: MessageFiles, report: Report, charged: ChargedUsers) -> None:
        self.state = RuleState(rule, charged)
        self.jobs = RuleJobs(manager, files, self.state.counts, report.done)
        self.starts = ServiceStarts(self.state, manager, report.done, report.judged)
        self._report = report

    def handle(self, item: Item, now: float) -> None:
        """Do what an item of the subscription causes."""
        if not isinstance(item, Message):
            self.gap(item.lost if isinstance(item, Gap) else item.count if isinstance(item, Replaced) else 0)
            return
        outcome, firing = self.state.judge(item, now)
        self._report.judged(self.state, outcome)
        if firing is not None and not self.jobs.request(firing):
            self._report.overflowed(self.state)

    def gap(self, lost: int, *, is_start: bool = False) -> None:
        """Note that *lost* messages, or an unknown number if 0, are missing. At the start of the trigger that is not logged."""
        firing = self.state.gap(lost)
        if not is_start:
            self._report.lost(self.state)
        if firing is not None:
            self.jobs.request(firing)


class Trigger:
    """One trigger. *alive* gets the status for people once a second; without *announces* it only starts units. *charged*
    says whose limits a sender takes."""

    def __init__(
        self,
        settings: TriggerSettings,
        manager: UnitManager,
        files: MessageFiles,
        report: Report,
        alive: Callable[[str], object],
        *,
        charged: ChargedUsers,
        announces: bool = True,
    ) -> None:
        self._settings = settings
        self._files = files
        self._report = report
        self._alive = alive
        self._announces = announces
        self._charged = charged
        self._rules = [_Rule(rule, manager, files, report, charged) for rule in settings.rules]
        self._missing = {rule.title for rule in settings.rules}
        """The rules whose messages do not yet arrive."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Work until cancelled; *ready* is called when all rules get messages, or the bus is not available.

        Raises:
            TriggerError: the bus refuses the patterns of a rule.
            OSError: the folder for messages cannot be created.
        """
        self._files.open()
        failed = first_defect()
        tasks = [asyncio.ensure_future(self._connections(rule, ready)) for rule in self._rules]
        tasks.append(asyncio.ensure_future(self._turns()))
        if self._announces:
            tasks.append(asyncio.ensure_future(self._announcements()))
        if not self._rules:
            ready()
        try:
            done, _ = await asyncio.wait([*tasks, failed], return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            failed.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(rule.jobs.drain() for rule in self._rules), *(rule.starts.drain() for rule in self._rules))

    @property
    def lost(self) -> int:
        """Messages whose action was not requested before the end."""
        return sum(rule.state.counts["abandoned"] for rule in self._rules)

    # Rules

    async def _connections(self, rule: _Rule, ready: Callable[[], None]) -> None:
        """Get the messages of a rule, and connect again whenever the connection ends. Raises TriggerError."""
        is_start = True

        def begun() -> None:
            nonlocal is_start
            # A call that finds no trigger fails, so none is lost silently.
            rule.gap(0, is_start=is_start or rule.state.rule.when == "no-service")
            is_start = False
            self._missing.discard(rule.state.rule.title)
            if not self._missing:
                self._report.bus_available(self._settings.bus)
                ready()

        async for _ in Attempts():
            try:
                await (self._connected if rule.state.rule.when == "message" else self._serving)(rule, begun)
            except (SbusError, OSError) as error:
                if isinstance(error, TriggerError):
                    raise
                self._report.bus_unavailable(str(error))
            ready()
            self._missing.add(rule.state.rule.title)

    async def _connected(self, rule: _Rule, begun: Callable[[], None]) -> None:
        """Get the messages of a rule until the connection ends. Raises SbusError, OSError."""
        settings = rule.state.rule
        loop = asyncio.get_running_loop()
        async with AsyncBus.connect(
            self._settings.bus, name=_name(settings.title), queue_packets=QUEUE_PACKETS, queue_bytes=QUEUE_BYTES
        ) as bus:
            await bus.tell(controls.SENDER_ON)
            await bus.tell(controls.ORDER_FAIR)
            try:
                subscription = await bus.subscribe(*settings.keys)
            except RemoteRefusal as refusal:
                raise TriggerError(f"rule {settings.title}: the bus refuses its keys: {refusal}") from None
            begun()
            while True:
                for item in await subscription.receive_many(ITEMS_PER_TURN):
                    rule.handle(item, loop.time())
                await asyncio.sleep(0)

    async def _serving(self, rule: _Rule, begun: Callable[[], None]) -> None:
        """Start services of the commands of a rule until the connection ends. Raises SbusError, OSError."""
        settings = rule.state.rule
        async with StartBus.connect(self._settings.bus, name=_name(settings.title)) as bus:
            for command in settings.commands:
                bus.service(start_command(command))(functools.partial(rule.starts.start, bus, command))
            try:
                await bus.serve_all(self._charged.of, begun)
            except RemoteRefusal as refusal:
                raise TriggerError(f"rule {settings.title}: the bus refuses {start_command(settings.commands[0])}: {refusal}") from None

    # Reports

    async def _announcements(self) -> None:
        """Serve the status and publish events, and connect again whenever the connection ends."""
        async for _ in Attempts():
            with contextlib.suppress(SbusError, OSError):  # the connections of the rules report it
                async with ServiceBus.connect(self._settings.bus, name="sbus-trigger reports") as bus:
                    bus.on_refused = lambda refusal: self._report.bus_unavailable(f"the bus refused: {printable(str(refusal))}")
                    bus.service(COMMAND, allow=Allow(users=tuple({0, os.geteuid()})))(self._status)
                    publishing = asyncio.ensure_future(self._publish(bus))
                    try:
                        await bus.serve_all(self._charged.of, max_concurrent=MAX_CONCURRENT_HANDLERS)
                    finally:
                        publishing.cancel()
                        await asyncio.gather(publishing, return_exceptions=True)

    async def _publish(self, bus: AsyncBus) -> None:
        """Publish events and the state."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            while self._report.events:
                await bus.publish(FIRED_KEY, self._report.events[0])
                self._report.events.popleft()
            if loop.time() >= due:
                due = loop.time() + self._settings.state_interval
                await bus.publish(STATE_KEY, json.dumps(totals_of(self._figures(), now=loop.time())).encode())
            await asyncio.sleep(0.05)

    def _status(self, _request: Request) -> bytes:
        """Return the state of all rules."""
        now = asyncio.get_running_loop().time()
        return json.dumps(state_of(self._figures(), self._report, now=now)).encode()

    def _figures(self) -> Sequence[tuple[RuleState, int]]:
        """Return the state of each rule, and the number of its units that wait."""
        return [(rule.state, len(rule.jobs) + len(rule.starts)) for rule in self._rules]

    async def _turns(self) -> None:
        """Report once a second that the trigger is alive, and remove old files."""
        while True:
            self._files.sweep()
            actions = sum(rule.state.counts["actions"] for rule in self._rules)
            failed = sum(rule.state.counts["failed"] for rule in self._rules)
            self._alive(f"{len(self._rules)} rules, {actions} actions, {failed} failed")
            await asyncio.sleep(TURN_SECONDS)


def _name(title: str) -> str:
    """Return the name of the connection of a rule."""
    return f"sbus-trigger {title}".encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")
