"""The systemd unit of a process. Source: cgroups(7), ``/proc/PID/cgroup``; systemd's "Control Group APIs and Delegation"."""

from __future__ import annotations

import re

_CGROUP_BYTES = 64 << 10
"""More of ``/proc/PID/cgroup`` is not looked at; the user that made the groups chose their names."""

_UNIT = re.compile(r"_?([A-Za-z0-9:_.\\@-]{1,255}\.(?:service|scope|socket|mount|swap))")
"""A folder of a unit; systemd puts a ``_`` before names that the kernel could take for its own files."""

_USER_MANAGER = re.compile(r"user@[0-9]+\.service")


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
