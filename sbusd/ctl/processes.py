"""Names of users, processes and units for the numbers that the bus reports."""

from __future__ import annotations

import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sbusd.ctl.formatting import NOTHING
from sbusd.systemd.cgroups import is_older, start_ticks, unit_of_process

if TYPE_CHECKING:
    from sbusd.ctl.responses import ConnectionInfo

_NO_UID = (1 << 32) - 1
"""To the kernel this number means "no user", setuid(2); no user has it or a greater one."""

_LOOKS = 5
"""Reports after which the names are read again: a process may have started another program, execve(2)."""


@cache
def user_name(uid: int | None) -> str:
    """Return the name of user *uid*, the number if it has no name, ``-`` for None."""
    if uid is None:
        return NOTHING
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def command_name(pid: int | None) -> str:
    """Return the name of process *pid*, ``-`` if it does not exist or may not be read.

    The process chooses this name itself: it is a hint, not a proof. Source: proc(5), ``/proc/PID/comm``.
    """
    if pid is None or pid <= 0:
        return NOTHING
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").removesuffix("\n")
    except OSError:
        return NOTHING


@dataclass(frozen=True, slots=True)
class Process:
    """The command name and the unit of a process; ``-`` if unknown."""

    command: str = NOTHING
    unit: str = NOTHING


def process_of(pid: int | None, since: float | None) -> Process:
    """Return name and unit of process *pid*, if it already had that number at *since*, in seconds since 1970.

    A process that started later, or that changes during this call, is a different one; its name and unit are unknown.
    """
    begun = start_ticks(pid)
    if begun is None or since is None or not is_older(begun, since):
        return Process()
    found = Process(command_name(pid), unit_of_process(pid) or NOTHING)
    return found if start_ticks(pid) == begun else Process()


def user_id(name: str) -> int | None:
    """Return the uid for a user name or number, None if there is no such user."""
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name) if int(name) < _NO_UID else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


class NameCache:
    """The names of connections, cached while they are connected."""

    def __init__(self) -> None:
        self._known: dict[int | None, dict[str, str]] = {}
        self._turns = 0

    def of(self, connection: ConnectionInfo) -> dict[str, str]:
        """Return ``user``, ``command`` and ``unit`` of *connection*."""
        known = self._known.get(connection.id)
        if known is None:
            process = process_of(connection.pid, connection.since)
            known = {"user": user_name(connection.uid), "command": process.command, "unit": process.unit}
            self._known[connection.id] = known
        return known

    def user(self, uid: int | None) -> str:
        """Return the name of a user."""
        return user_name(uid)

    def keep(self, connections: Iterable[int]) -> None:
        """Forget all but *connections*; every fifth time forget all."""
        self._turns += 1
        if self._turns % _LOOKS == 0:
            self._known.clear()
        else:
            self._known = {key: self._known[key] for key in connections if key in self._known}
