"""What the kernel says of a process by its number: when it began, and its systemd unit. Source: proc(5), cgroups(7); systemd's "Control
Group APIs and Delegation"."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_CGROUP_BYTES = 64 << 10
"""More of ``/proc/PID/cgroup`` is not looked at; the user that made the groups chose their names."""

_UNIT = re.compile(r"_?([A-Za-z0-9:_.\\@-]{1,255}\.(?:service|scope|socket|mount|swap))")
"""A folder of a unit; systemd puts a ``_`` before names that the kernel could take for its own files."""

_USER_MANAGER = re.compile(r"user@[0-9]+\.service")

_CLOCK_SLACK_SECONDS = 2.0
"""By how much a process may seem to have begun after its own connection: the system's clock is set now and then."""


def start_ticks(pid: int | None) -> int | None:
    """Return when the process that has the number *pid* now began, in ticks since the machine did, or None if there is none."""
    if pid is None or pid <= 0:
        return None
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # A process chooses its name, which stands in parentheses and may hold some.
    fields = text.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None


def is_older(begun: int, since: float) -> bool:
    """Return whether a process that began at the tick *begun* was there at *since*, in seconds since 1970: one that began later is another
    one with the same number."""
    # The clock's step may be off by some ticks, and the bus tells when it accepted, a moment after connect(2).
    then = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.time() - since)
    return begun / os.sysconf("SC_CLK_TCK") <= then + _CLOCK_SLACK_SECONDS


def unit_at(pid: int | None, since: float | None) -> str | None:
    """Return the unit of the process that had the number *pid* at *since*, in seconds since 1970; None if it is in none, has ended, may not
    be read, or *since* is None."""
    begun = start_ticks(pid)
    if begun is None or since is None or not is_older(begun, since):
        return None
    unit = unit_of_process(pid)
    return unit if start_ticks(pid) == begun else None


def unit_of_process(pid: int | None) -> str | None:
    """Return the unit of the process that has the number *pid* now; None if it is in none, has ended, or may not be read."""
    if pid is None or pid <= 0:
        return None
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return unit_of_cgroups(file.read(_CGROUP_BYTES))
    except OSError:
        return None


def unit_of_cgroups(text: str) -> str | None:
    """Return the unit in the text of ``/proc/PID/cgroup``.

    The outermost one is the system's word. What lies below it, the unit itself may have made, under any name: it counts only
    below a user's service manager, and behind that one's name: ``user@1000.service/app.service``. So nobody passes for a unit of
    the system.
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
