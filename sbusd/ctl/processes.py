"""Names for the numbers that the bus knows of a process: its user, its command."""

from __future__ import annotations

import os
import pwd
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sbusd.ctl.quantities import NOTHING

_UNIT = re.compile(r"_?(.+\.(?:service|scope|socket|mount|swap))")
"""A folder of a unit; systemd puts a ``_`` before names that the kernel could take for its own files."""

_CGROUP_BYTES = 64 << 10
"""More of ``/proc/PID/cgroup`` is not looked at; the user that made the groups chose their names."""


_CLOCK_SLACK_SECONDS = 2.0
"""By how much a process may seem to have begun after its own connection: the system's clock is set now and then."""


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


def unit_name(pid: int | None) -> str:
    """Return the systemd unit of the process that has the number *pid* now, ``-`` if it is in none, or may not be read.

    Of a user's own units it is the unit, not that of the user's service manager. A hint for people: a user names own units and
    scopes. Source: cgroups(7), ``/proc/PID/cgroup``.
    """
    if pid is None or pid <= 0:
        return NOTHING
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            return unit_of_cgroups(file.read(_CGROUP_BYTES))
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
    if begun is None or since is None:
        return Process()
    # The clock's step may be off by some ticks, and the bus tells when it accepted, a moment after connect(2).
    if begun / os.sysconf("SC_CLK_TCK") > time.clock_gettime(time.CLOCK_BOOTTIME) - (time.time() - since) + _CLOCK_SLACK_SECONDS:
        return Process()
    found = Process(command_name(pid), unit_name(pid))
    return found if start_ticks(pid) == begun else Process()


def start_ticks(pid: int | None) -> int | None:
    """Return when the process that has the number *pid* now began, in ticks of the clock since the machine did, or None if there is none.

    Source: proc(5), ``/proc/PID/stat``, field 22.
    """
    if pid is None or pid <= 0:
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # A process chooses its name, which stands in parentheses and may hold some.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None


def user_id(name: str) -> int | None:
    """Return the number of a user, by name or number, or None if there is no such user."""
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def unit_of_cgroups(text: str) -> str:
    """Return the innermost unit in the text of ``/proc/PID/cgroup``: in its unified hierarchy, else in systemd's own."""
    paths = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths[controllers] = path
    path = paths.get("", "")
    for folder in reversed((path if path not in ("", "/") else paths.get("name=systemd", "")).split("/")):
        if match := _UNIT.fullmatch(folder):
            return match[1]
    return NOTHING
