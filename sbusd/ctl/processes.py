"""Names for the numbers that the bus knows of a process: its user, its command."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sbusd.ctl.quantities import NOTHING
from sbusd.systemd.cgroups import is_older, start_ticks, unit_of_process


@cache
def user_name(uid: int | None) -> str:
    """Return the name of user *uid*, the number where it has none, ``-`` for None."""
    if uid is None:
        return NOTHING
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def command_name(pid: int | None) -> str:
    """Return the name of the process that has the number *pid* now, ``-`` if there is none or it may not be read.

    It is what the process calls itself: a hint for people, never a proof. Source: proc(5), ``/proc/PID/comm``.
    """
    if pid is None or pid <= 0:
        return NOTHING
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").removesuffix("\n")
    except OSError:
        return NOTHING


@dataclass(frozen=True, slots=True)
class Process:
    """What a process is called, and the unit that it is in; ``-`` where that cannot be told."""

    command: str = NOTHING
    unit: str = NOTHING


def process_of(pid: int | None, since: float | None) -> Process:
    """Return what the process *pid* is called and its unit, if it is the one that had that number at *since*, in seconds since 1970.

    A process that began later is another one with the same number, and so is one that changes while it is looked at: both are nobody.
    """
    begun = start_ticks(pid)
    if begun is None or since is None or not is_older(begun, since):
        return Process()
    found = Process(command_name(pid), unit_of_process(pid) or NOTHING)
    return found if start_ticks(pid) == begun else Process()


def user_id(name: str) -> int | None:
    """Return the number of a user, by name or number, or None if there is no such user."""
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None
