"""Names for the numbers that the bus knows of a process: its user, its command."""

from __future__ import annotations

import pwd
import re
from functools import cache
from pathlib import Path

from sbusd.ctl.quantities import NOTHING

_UNIT = re.compile(r"_?(.+\.(?:service|scope|socket|mount|swap))")
"""A folder of a unit; systemd puts a ``_`` before names that the kernel could take for its own files."""

_CGROUP_BYTES = 64 << 10
"""More of ``/proc/PID/cgroup`` is not looked at; the user that made the groups chose their names."""


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
