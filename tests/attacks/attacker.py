"""Processes of a hostile user: forked, given that user's ids, started together, counted, and ended.

They run under SCHED_IDLE and on the victim's core: they take what processor time the victim leaves, and none from the daemon's
core. The test is about the bus; the scheduler decides how much of a processor a user gets, and a flood of CPU-hungry
processes slows the victim down without any bus.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tests.support.users import User

START_SECONDS = 120.0
"""The test fails if the processes have not begun their attack after this time; their preparation is bounded."""

MAX_DESCRIPTORS = 4_096
"""The maximum number of descriptors of one hostile process."""


class AttackContext:
    """The environment of one hostile process: the address of the bus, a counter of hostile acts, and a pipe that reports the start."""

    def __init__(self, path: str, place: int, shared: mmap.mmap, ready: int) -> None:
        self.path = path
        self.place = place
        """The index of this process in the attack, from 0."""
        self._shared = shared
        self._ready = ready
        self._done = 0
        self._has_begun = False

    @property
    def has_acted(self) -> bool:
        """Whether this process has counted anything."""
        return self._done > 0

    def begin(self) -> None:
        """Report that the attack has begun: the victim is measured from now on. Later calls have no effect."""
        if not self._has_begun:
            self._has_begun = True
            os.write(self._ready, b"x")
            os.close(self._ready)  # the pipe ends when each process has begun or has failed

    def count(self, number: int = 1) -> None:
        """Add to the number of hostile acts."""
        self._done += number
        struct.pack_into("q", self._shared, 8 * self.place, self._done)


Role = Callable[[AttackContext], None]
"""The code of one hostile process, which is killed while it runs."""


@runtime_checkable
class Prepared(Protocol):
    """A role that prepares something as root, in its own process."""

    def prepare(self, context: AttackContext) -> None:
        """Do as root what users can do by a privileged program of the machine."""

    def __call__(self, context: AttackContext) -> None:
        """Attack."""


class Attackers:
    """The running processes of one attack, one for each role. End them with :meth:`stop`."""

    def __init__(self, path: str, roles: Sequence[Role], user: User, core: int | None, *, is_urgent: bool = False) -> None:
        """*is_urgent* processes are scheduled as all others are: on a loaded machine an attack then still takes place."""
        self._shared = mmap.mmap(-1, 8 * len(roles))
        reader, writer = os.pipe()
        self._pids: list[int] = []
        try:
            for place, role in enumerate(roles):
                self._pids.append(_fork(role, AttackContext(path, place, self._shared, writer), user, core, reader, is_urgent=is_urgent))
        finally:
            os.close(writer)
        try:
            _wait_for(reader, len(roles))
        except BaseException:
            self.stop()
            raise
        finally:
            os.close(reader)

    @property
    def acts(self) -> int:
        """The number of hostile acts so far."""
        return sum(struct.unpack(f"{len(self._shared) // 8}q", self._shared[:]))

    def stop(self) -> None:
        """Kill and reap the processes."""
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            os.waitpid(pid, 0)
        self._pids.clear()


def _fork(role: Role, context: AttackContext, user: User, core: int | None, reader: int, *, is_urgent: bool) -> int:
    """Start one process and return its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.close(reader)
        if isinstance(role, Prepared):
            role.prepare(context)
        _become(user, core, is_urgent=is_urgent)
        with contextlib.suppress(OSError):  # the bus refuses more of this: what there is stays until the kill
            role(context)
        context.begin()
        status = 0
    except BaseException as error:  # the parent sees the end of the pipe; this says why
        with contextlib.suppress(OSError):
            os.write(2, f"attacker: {type(error).__name__}: {error}\n".encode())
    finally:
        # An attack that is done leaves its connections open until it is killed.
        if status == 0:
            signal.pause()
        os._exit(status)


def _become(user: User, core: int | None, *, is_urgent: bool) -> None:
    """Change to the user's ids and, unless *is_urgent*, to the lowest scheduling priority."""
    signal.alarm(180)  # an orphan ends by itself
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_DESCRIPTORS, MAX_DESCRIPTORS))
    if core is not None:
        os.sched_setaffinity(0, {core})
    if not is_urgent:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    os.chdir("/")


def _wait_for(reader: int, number: int) -> None:
    """Wait until *number* processes have begun. Raises AssertionError if one exits first, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while number:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{number} hostile processes have not begun {START_SECONDS} s after their start"
        begun = os.read(reader, number)
        assert begun, f"{number} hostile processes have ended before they began"
        number -= len(begun)
