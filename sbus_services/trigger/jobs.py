"""Actions on units, by systemctl(1), one at a time for each unit. Messages meanwhile become one more action with the newest of them.

So a unit of ``Type=oneshot`` runs again if a message comes while it runs, and a flood of messages costs one action after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from sbus.protocol.printable import printable
from sbus_services.trigger.message_files import MessageFiles, NoRoomError
from sbus_services.trigger.rule_state import Firing

_VERBS = {"start": "start", "restart": "restart", "reload": "reload-or-restart", "stop": "stop"}

_READ_BYTES = 4 << 10
"""Bytes of the error text that are read."""

_SHOWN_CHARACTERS = 300

STATE_SECONDS = 30.0
"""Maximum time to wait for the state of a unit. The time of an action is limited by its unit, TimeoutStartSec= in systemd.service(5)."""


@dataclass(frozen=True, slots=True)
class ServiceManagerCalls:
    """The service manager of the system, or of the calling user."""

    is_user: bool = False
    program: str = "systemctl"

    async def run(self, action: str, unit: str, *, waits: bool = True) -> str:
        """Do *action* with *unit*, and wait for the end of its job if it *waits*; return why it failed, or no words."""
        # "--": a name never counts as an option.
        options = ["--no-ask-password", "--no-pager", *([] if waits else ["--no-block"])]
        try:
            status, text = await self._call(*options, _VERBS[action], "--", unit, is_error_read=True)
        except OSError as error:
            return f"cannot run {self.program}: {error.strerror}"
        line = printable(" ".join(text.split()), _SHOWN_CHARACTERS)
        return "" if status == 0 else line or f"{self.program} exited with status {status}"

    async def state(self, unit: str) -> tuple[str, str]:
        """Return the active state of *unit* and its result, such as ``failed`` and ``exit-code``; ``unknown`` if they cannot be read."""
        try:
            async with asyncio.timeout(STATE_SECONDS):
                _, text = await self._call("--no-pager", "show", "--property=ActiveState,Result", "--", unit)
        except OSError:
            text = ""
        found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return printable(found.get("ActiveState") or "unknown"), printable(found.get("Result") or "unknown")

    async def _call(self, *words: str, is_error_read: bool = False) -> tuple[int, str]:
        """Return the status of systemctl, and the beginning of its output, or of its error output. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            *(["--user"] if self.is_user else []),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL if is_error_read else asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if is_error_read else asyncio.subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            cwd="/",
        )
        try:
            text = await _beginning(process.stderr if is_error_read else process.stdout)
            return await process.wait(), text.decode("utf-8", "replace")
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # the job goes on without it
            await process.wait()
            raise


async def _beginning(stream: asyncio.StreamReader | None) -> bytes:
    """Return the beginning of *stream*, and read the rest of it."""
    text = b""
    while stream is not None and (piece := await stream.read(_READ_BYTES)):
        text += piece[: _READ_BYTES - len(text)]
    return text


MAX_RUNNING = 8
"""Actions of one rule that run at the same time. A unit that never becomes active delays only those of its rule."""

MAX_RUNNING_OF_USER = 4
"""The same for the messages of one user, so that no user can delay all others."""

MAX_UNITS = 256
"""Units of one rule with an action that runs or waits. Beyond it, each user can still have one: no user takes the place of another."""

MAX_UNITS_OF_USER = 64
"""The same for the messages of one user."""

GRACE_SECONDS = 5.0
"""How long the end of the trigger waits for actions that run: after that their jobs have certainly been requested."""

DRAIN_SECONDS = 20.0
"""How long the end of the trigger may take for actions that wait."""


class Manager(Protocol):
    """The service manager."""

    def run(self, action: str, unit: str, *, waits: bool = True) -> Awaitable[str]:
        """Do *action* with *unit*; return why it failed, or no words."""


@dataclass(frozen=True, slots=True)
class Done:
    """An action that has ended."""

    firing: Firing
    messages: int
    """Messages that caused it."""
    error: str
    """Why it failed; empty if it has not."""


class _UnitJobs:
    """The actions on one unit: the one that runs, and the next one."""

    def __init__(self, user: int) -> None:
        self.user = user
        """The user whose message was the first."""
        self.next: Firing | None = None
        self.messages = 0
        self.task: asyncio.Task[None] | None = None

    def take(self) -> tuple[Firing, int] | None:
        """Return the next action and the number of its messages, None if there is none."""
        if self.next is None:
            return None
        taken = self.next, self.messages
        self.next, self.messages = None, 0
        return taken


class RuleJobs:
    """The actions of one rule. *report* is called with each that has ended."""

    def __init__(self, manager: Manager, files: MessageFiles, counts: Counter[str], report: Callable[[Done], None]) -> None:
        self._manager = manager
        self._files = files
        self._counts = counts
        self._report = report
        self._units: dict[str, _UnitJobs] = {}
        self._slots = asyncio.Semaphore(MAX_RUNNING)
        self._slots_of_users: dict[int, asyncio.Semaphore] = {}
        self._units_of_users: Counter[int] = Counter()
        self._is_draining = False

    def __len__(self) -> int:
        """Return the number of units with an action that runs or waits."""
        return len(self._units)

    def request(self, firing: Firing) -> bool:
        """Do the action of *firing* as soon as possible. Return False if too many units wait; then it is counted and forgotten."""
        jobs = self._units.get(firing.unit)
        if jobs is None:
            user = -1 if firing.sender is None else firing.sender.charged
            own = self._units_of_users[user]
            if own >= MAX_UNITS_OF_USER or (own and len(self._units) >= MAX_UNITS):
                self._counts["overflow"] += 1
                return False
            jobs = self._units[firing.unit] = _UnitJobs(user)
            self._units_of_users[user] += 1
            self._slots_of_users.setdefault(user, asyncio.Semaphore(MAX_RUNNING_OF_USER))
        if jobs.next is not None:
            self._counts["coalesced"] += 1
        jobs.next = firing
        jobs.messages += 1
        if jobs.task is None:
            jobs.task = asyncio.ensure_future(self._work(firing.unit, jobs))
        return True

    async def drain(self) -> None:
        """Let the actions that run go on without the trigger, and start those that wait without waiting for their end."""
        self._is_draining = True
        units = dict(self._units)
        tasks = [jobs.task for jobs in units.values() if jobs.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await asyncio.gather(*(self._start_last(jobs) for jobs in units.values()))
        self._counts["abandoned"] += sum(jobs.messages for jobs in units.values())
        self._units.clear()

    async def _start_last(self, jobs: _UnitJobs) -> None:
        """Start the action that waits."""
        async with self._slots:
            if (taken := jobs.take()) is not None:
                await self._run(*taken, waits=False)

    async def _work(self, unit: str, jobs: _UnitJobs) -> None:
        """Do the actions on one unit, one after another."""
        while jobs.next is not None and not self._is_draining:
            async with self._slots_of_users[jobs.user], self._slots:
                if (taken := self._take(jobs)) is not None:
                    await self._run(*taken, waits=True)
        jobs.task = None
        if jobs.next is None:
            del self._units[unit]
            self._units_of_users[jobs.user] -= 1
            if not self._units_of_users[jobs.user]:
                del self._units_of_users[jobs.user], self._slots_of_users[jobs.user]

    def _take(self, jobs: _UnitJobs) -> tuple[Firing, int] | None:
        """Return the next action, None at the end of the trigger: it does not wait for jobs then."""
        return None if self._is_draining else jobs.take()

    async def _run(self, firing: Firing, messages: int, *, waits: bool) -> None:
        """Do one action, and report it."""
        try:
            error = await self._done(firing, messages, waits=waits)
        except asyncio.CancelledError:
            # The job was requested, and goes on. Only its result is unknown.
            self._counts["unknown"] += 1
            raise
        finally:
            self._files.finished(firing.unit)
        self._counts["failed" if error else "succeeded"] += 1
        self._report(Done(firing, messages, error))

    async def _done(self, firing: Firing, messages: int, *, waits: bool) -> str:
        """Write the message and do the action; return why it failed, or no words."""
        self._counts["actions"] += 1
        try:
            if firing.rule.action != "stop":
                self._files.write(firing, messages)
        except NoRoomError as error:
            return str(error)
        except OSError as error:
            return f"cannot write the message for the unit: {error.strerror}"
        return await self._manager.run(firing.rule.action, firing.unit, waits=waits)
