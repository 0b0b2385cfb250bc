"""Names of users, processes and units for the numbers that the bus reports."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sbusd.ctl.quantities import NOTHING
from sbusd.systemd.cgroups import is_older, start_ticks, unit_of_process


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
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None
