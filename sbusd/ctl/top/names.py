"""A cache of the names of users, commands and units, which is refreshed from time to time."""

from __future__ import annotations

from collections.abc import Iterable

from sbusd.ctl.processes import process_of, user_name
from sbusd.ctl.responses import ConnectionInfo

_LOOKS = 5
"""Reports after which the names are read again: a process may have started another program, execve(2)."""


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
