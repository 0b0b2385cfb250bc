"""Services that are started when they are called. Spec: sbus-trigger(8), "Services on demand".

A client that finds no service of a command calls ``trigger/start/<command>``, and sends its request again when that has succeeded. So the
trigger never has the request, a service gets it from its caller alone, and no right of the bus is needed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from sbus import Request
from sbus.asyncio.service_bus import ServiceBus
from sbus.errors import SbusError, ServiceError
from sbus.protocol.envelope import service_key
from sbus_services.trigger.jobs import Done
from sbus_services.trigger.rule_state import Firing, RuleState, Sender

MAX_CALLS_OF_USER = 256
"""Calls of one user that wait for services of one rule: as many as a service queues of a user."""

MAX_CALLS = 4_096
"""Calls of all users that wait for services of one rule. Beyond it, each user can still have one: no user takes the place of another."""

_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5
"""Seconds between two looks at whether the service has subscribed; they grow."""


class UnitManager(Protocol):
    """The service manager."""

    def run(self, action: str, unit: str, *, waits: bool = True) -> Awaitable[str]:
        """Do *action* with *unit*; return why it failed, or no words."""

    def state(self, unit: str) -> Awaitable[tuple[str, str]]:
        """Return the active state of *unit*, and its result."""


class CommandMembers(Protocol):
    """The bus, as far as services are concerned."""

    def is_served(self, command: str) -> Awaitable[bool]:
        """Return whether a service of *command* exists. Raises SbusError, OSError."""


class StartBus(ServiceBus):
    """A connection that starts services; make one with ``StartBus.connect``."""

    async def is_served(self, command: str) -> bool:
        """Return whether a service of *command* exists: a mere subscriber does not subscribe at its own address."""
        key = service_key(command)
        for peer in await self.members(key):
            if await self.members(peer.address_bytes + key):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Start:
    """A start that runs, and the user who is charged for its call. Its result: why it failed, and whether that was because of the
    user's limits."""

    charged: int
    task: asyncio.Task[tuple[str, bool]]


class ServiceStarts:
    """The starts of one rule. *done* is called with each action that has ended, *judged* with the outcome of each call."""

    def __init__(
        self, state: RuleState, manager: UnitManager, done: Callable[[Done], None], judged: Callable[[RuleState, str], None]
    ) -> None:
        self._state = state
        self._manager = manager
        self._done = done
        self._judged = judged
        self._starts: dict[str, _Start] = {}
        self._calls: Counter[int] = Counter()

    def __len__(self) -> int:
        """Return the number of starts that run."""
        return len(self._starts)

    async def start(self, bus: CommandMembers, command: str, request: Request) -> None:
        """Return when a service of *command* exists.

        Raises:
            ServiceError: it does not, or the caller may not start it.
        """
        state = self._state
        state.counts["messages"] += 1
        sender = state.sender(request.caller)
        if sender is None:
            self._count("wrong_sender")
            raise ServiceError(f"user {request.caller.uid} may not start {state.rule.unit}")
        user = sender.charged
        if self._calls[user] >= MAX_CALLS_OF_USER:
            self._count("overflow")
            raise ServiceError(f"busy: {MAX_CALLS_OF_USER} calls of user {user} wait for services")
        if self._calls[user] and self._calls.total() >= MAX_CALLS:
            self._count("overflow")
            raise ServiceError(f"busy: {MAX_CALLS} calls of all users wait for services")
        self._calls[user] += 1
        try:
            error = await self._result(bus, command, sender)
        finally:
            self._calls[user] -= 1
            if not self._calls[user]:
                del self._calls[user]
        if error:
            raise ServiceError(error)

    async def drain(self) -> None:
        """End. The jobs of units go on."""
        tasks = [start.task for start in self._starts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _result(self, bus: CommandMembers, command: str, sender: Sender) -> str:
        """Start a service, or wait for the start that runs; return why it failed, or no words."""
        while True:
            start = self._starts.get(command)
            if start is None:
                task = asyncio.ensure_future(self._run(bus, command, sender))
                start = self._starts[command] = _Start(sender.charged, task)
                task.add_done_callback(lambda _task: self._starts.pop(command, None))
            else:
                self._count("coalesced")
            # Callers that give up do not end the start for the others.
            error, is_limited = await asyncio.shield(start.task)
            # The limits of another user are not those of this one.
            if not is_limited or start.charged == sender.charged:
                return error

    async def _run(self, bus: CommandMembers, command: str, sender: Sender) -> tuple[str, bool]:
        """Start a service unless there is one; return why it failed, or no words, and whether that was because of limits."""
        try:
            if await bus.is_served(command):
                self._count("served")
                return "", False
            key = service_key(command)
            outcome, firing = self._state.admit(sender, key, b"", asyncio.get_running_loop().time())
            self._count(outcome)
            if firing is None:
                return f"cannot start {self._state.rule.unit}: {self._refusal(outcome)}", outcome != "invalid"
            return await self._started(bus, command, firing), False
        except (SbusError, OSError) as error:
            return f"sbus-trigger has no connection to the bus: {error}", False

    async def _started(self, bus: CommandMembers, command: str, firing: Firing) -> str:
        """Start the unit, and wait for its service; return why it failed, or no words."""
        counts = self._state.counts
        counts["actions"] += 1
        try:
            error = await self._manager.run("start", firing.unit)
            error = f"cannot start {firing.unit}: {error}" if error else await self._no_service(bus, command, firing.unit)
        except asyncio.CancelledError:
            # The job was requested, and goes on. Only its result is unknown.
            counts["unknown"] += 1
            raise
        counts["failed" if error else "succeeded"] += 1
        self._done(Done(firing, 1, error))
        return error

    async def _no_service(self, bus: CommandMembers, command: str, unit: str) -> str:
        """Wait until *unit* serves *command*; return no words then, or why it will not."""
        loop = asyncio.get_running_loop()
        seconds, pause = self._state.rule.service_timeout, _FIRST_PAUSE
        end = loop.time() + seconds
        while not await bus.is_served(command):
            state, result = await self._manager.state(unit)
            if state in ("inactive", "failed"):
                # It may have ended because another process serves the command.
                ended = f"{unit} has ended without a service of {command!r}: its result is {result}"
                return "" if await bus.is_served(command) else ended
            if loop.time() >= end:
                return f"{unit} is {state}, but has no service of {command!r} after {seconds:g} s"
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE)
        return ""

    def _refusal(self, outcome: str) -> str:
        """Return why the limits or the name of the unit refuse a start."""
        if outcome == "suspended":
            return "the rule is suspended for this user"
        return self._state.problem

    def _count(self, outcome: str) -> None:
        """Count and report an outcome."""
        self._state.counts[outcome] += 1
        self._judged(self._state, outcome)
