"""Facts about a process from its number: its start time and its systemd unit. Source: proc(5), cgroups(7); systemd's "Control Group
APIs and Delegation"."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_CGROUP_BYTES = 64 << 10
"""Maximum number of bytes that are read of ``/proc/PID/cgroup``: the user that created the control groups chose their names."""

_UNIT = re.compile(r"_?([A-Za-z0-9:_.\\@-]{1,255}\.(?:service|scope|socket|mount|swap))")
"""The directory of a unit. systemd adds a ``_`` before names that could be files of the kernel."""

_USER_MANAGER = re.compile(r"user@[0-9]+\.service")

_CLOCK_SLACK_SECONDS = 2.0
"""How much later than its own connection a process may seem to have started, because the system clock was adjusted."""


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


def is_older(begun: int, since: float) -> bool:
    """Return whether a process that started at tick *begun* existed at *since*, in seconds since 1970.

    A process that started later is another one with the same number.
    """
    # An adjusted clock may be wrong by some ticks, and the bus reports the time of accept(2), a moment after connect(2).
    then = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.time() - since)
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
    paths = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths[controllers] = path
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
