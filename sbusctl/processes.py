"""Names of users and groups for the numbers that the bus reports, the groups of a user, and a cache of the names of connections."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from sbus_programs.systemd.processes import Process, process_of
from sbusctl.formatting import NOTHING
from sbusctl.output import visible

if TYPE_CHECKING:
    from sbusctl.responses import ConnectionInfo

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


def labelled(command: str, name: str | None) -> str:
    """Return the name of a process, after the name that its connection has given to itself, if any."""
    return f"{name} ({command})" if name else command


def unit_shown(connection: ConnectionInfo, process: Process) -> str:
    """Return the unit of a connection: the one that the bus reports, or else that of the present *process*, which is only a hint."""
    return visible(connection.unit_path) if connection.unit_path else process.unit


def user_id(name: str) -> int | None:
    """Return the uid for a user name or number, None if there is no such user."""
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name) if int(name) < _NO_UID else None
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return None


def group_name(gid: int) -> str:
    """Return the name of group *gid*, the number if it has no name."""
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return str(gid)


def login_groups(uid: int) -> tuple[int, ...] | None:
    """Return the groups of a process of user *uid* after a new login, its own one first; None if the user database has no such user."""
    try:
        entry = pwd.getpwuid(uid)
        return entry.pw_gid, *sorted({*os.getgrouplist(entry.pw_name, entry.pw_gid)} - {entry.pw_gid})
    except (KeyError, OverflowError, OSError):
        return None


class NameCache:
    """The names of connections, cached while they are connected."""

    def __init__(self) -> None:
        self._known: dict[int | None, dict[str, str]] = {}
        self._turns = 0

    def of(self, connection: ConnectionInfo) -> dict[str, str]:
        """Return ``user``, ``command``, ``unit`` and ``slice`` of *connection*."""
        known = self._known.get(connection.id)
        if known is None:
            process = process_of(connection.pid, connection.since)
            known = {
                "user": user_name(connection.uid),
                "command": labelled(process.command, connection.name),
                "unit": unit_shown(connection, process),
                "slice": connection.slice or NOTHING,
            }
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
