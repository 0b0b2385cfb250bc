"""Facts about a process: its command, its start time, and its place in the units of systemd. Source: proc(5), cgroups(7)."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_CGROUP_BYTES = 64 << 10
"""Maximum number of bytes that are read of ``/proc/PID/cgroup``: the user that created the control groups chose their names."""

_UNIT = re.compile(r"_?([A-Za-z0-9:_.\\@-]{1,255}\.(?:service|scope|socket|mount|swap))")
"""The directory of a unit. systemd adds a ``_`` before names that could be files of the kernel."""

_SLICE = re.compile(r"_?([A-Za-z0-9:_.\\@-]{1,255}\.slice)")

_USER_MANAGER = re.compile(r"user@[0-9]+\.service")

ROOT_SLICE = "-.slice"
"""The slice of units whose directory is at the root of the control groups."""

_CLOCK_SLACK_SECONDS = 2.0
"""How much later than its own connection a process may seem to have started, because the system clock was adjusted."""


class Placement(NamedTuple):
    """The place of a process in the units of systemd. Empty texts: it is in none.

    ``unit`` and ``slice`` are set by the system's service manager, which runs as root. ``user_unit`` is a unit of a user's own service
    manager, ``unit`` is then ``user@<uid>.service``: that user chooses the name.
    """

    unit: str = ""
    slice: str = ""
    user_unit: str = ""

    @property
    def path(self) -> str:
        """The unit, and after a ``/`` the unit of the user's own service manager, if it is in one."""
        return f"{self.unit}/{self.user_unit}" if self.user_unit else self.unit

    def members(self) -> dict[str, object]:
        """Return the place as members of a JSON object; None for an empty one."""
        return {"unit": self.unit or None, "slice": self.slice or None, "user_unit": self.user_unit or None}


@lru_cache(maxsize=1024)
def placement_of(text: str) -> Placement | None:
    """Return the place of a process whose ``/proc/PID/cgroup`` is *text*, or None if it is unknown.

    The system's service manager names the directories down to the first one that is not a slice. That one is the unit. It may be
    delegated: its processes can then create control groups of any name below it, such as ``nginx.service``.

    Unknown is a process in the root control group, because a system without systemd in control of the hierarchy has all processes there;
    one outside of the control groups that this process sees; and one whose control group was removed.
    """
    paths = [line[3:] for line in _lines(text) if line.startswith("0::")]
    if len(paths) != 1 or paths[0] == "/" or not paths[0].startswith("/") or paths[0].endswith(" (deleted)"):
        return None
    folders = paths[0][1:].split("/")
    if ".." in folders:
        return None
    slices: list[str] = []
    for depth, folder in enumerate(folders):
        if (match := _SLICE.fullmatch(folder)) is not None:
            slices.append(match[1])
            continue
        if (match := _UNIT.fullmatch(folder)) is None:
            break
        user_unit = _first_unit(folders[depth + 1 :]) if _USER_MANAGER.fullmatch(match[1]) else ""
        return Placement(match[1], slices[-1] if slices else ROOT_SLICE, user_unit)
    return Placement("", slices[-1] if slices else "")


def _lines(text: str) -> list[str]:
    """Return the lines of ``/proc/PID/cgroup``. str.splitlines() splits at characters too that names of control groups can contain."""
    return text.split("\n")


def _first_unit(folders: list[str]) -> str:
    """Return the first unit among *folders*, or an empty text."""
    return next((match[1] for folder in folders if (match := _UNIT.fullmatch(folder))), "")


def start_ticks(pid: int | None) -> int | None:
    """Return when the process *pid* started, in clock ticks since boot, or None if it does not exist."""
    if pid is None or pid <= 0:
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The process chooses its name, which is in parentheses and may contain parentheses.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None


def _date_of_boot() -> float:
    """Return when the machine was booted according to its wall clock, in seconds since 1970. It changes if that clock is set."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


_FIRST_DATE_OF_BOOT = _date_of_boot()
"""As it was when this program started."""


def is_older(begun: int, since: float) -> bool:
    """Return whether a process that started at tick *begun* existed at *since*, in seconds since 1970.

    A process that started later is another one with the same number.
    """
    # *since* is a date of before or after the wall clock was set. The clocks may differ by some ticks, and the bus reports the time of
    # accept(2), a moment after connect(2).
    then = since - min(_FIRST_DATE_OF_BOOT, _date_of_boot())
    return begun / os.sysconf("SC_CLK_TCK") <= then + _CLOCK_SLACK_SECONDS


def unit_at(pid: int | None, since: float | None) -> str | None:
    """Return the unit of the process that had the number *pid* at *since*, in seconds since 1970.

    Returns None if it is in no unit, has ended or is not readable, or if *since* is None.
    """
    begun = start_ticks(pid)
    if begun is None or since is None or not is_older(begun, since):
        return None
    unit = unit_of_process(pid)
    return unit if start_ticks(pid) == begun else None


def unit_of_process(pid: int | None) -> str | None:
    """Return the unit of the process *pid*, or None if it is in no unit, has ended or is not readable."""
    if pid is None or pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return unit_of_cgroups(file.read(_CGROUP_BYTES))
    except OSError:
        return None


def unit_of_cgroups(text: str) -> str | None:
    """Return the unit in the *text* of ``/proc/PID/cgroup``.

    Only the outermost unit is set by the system. The unit itself can create control groups with any name below it, so these count only
    below a user's service manager, and with its name in front: ``user@1000.service/app.service``. No user can imitate a system unit.
    """
    paths: dict[str, str] = {}
    for line in _lines(text):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths.setdefault(controllers, path)
    path = paths.get("", "")
    names = [
        match[1]
        for folder in (path if path not in ("", "/") else paths.get("name=systemd", "")).split("/")
        if (match := _UNIT.fullmatch(folder))
    ]
    if not names:
        return None
    if _USER_MANAGER.fullmatch(names[0]) and len(names) > 1:
        return f"{names[0]}/{names[1]}"
    return names[0]


UNKNOWN = "-"
"""Replaces the name of a process that does not exist or may not be read."""


def command_name(pid: int | None) -> str:
    """Return the name of process *pid*, ``-`` if it does not exist or may not be read.

    The process chooses this name itself: it is a hint, not a proof. Source: proc(5), ``/proc/PID/comm``.
    """
    if pid is None or pid <= 0:
        return UNKNOWN
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").removesuffix("\n")
    except OSError:
        return UNKNOWN


@dataclass(frozen=True, slots=True)
class Process:
    """The command name and the unit of a process; ``-`` if unknown."""

    command: str = UNKNOWN
    unit: str = UNKNOWN


def process_of(pid: int | None, since: float | None) -> Process:
    """Return name and unit of process *pid*, if it already had that number at *since*, in seconds since 1970.

    A process that started later, or that changes during this call, is a different one; its name and unit are unknown.
    """
    begun = start_ticks(pid)
    if begun is None or since is None or not is_older(begun, since):
        return Process()
    found = Process(command_name(pid), unit_of_process(pid) or UNKNOWN)
    return found if start_ticks(pid) == begun else Process()
