"""Who may scrape: root, the user of this program, and those of the configuration. Each user can connect, so each has a limit.

A limit is that of the user who is charged for a uid, subuid(5). The right to scrape is that of the uid itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import socket
import struct
from collections import Counter
from collections.abc import Sequence

from sbusd.client.asyncio.look_ups import in_thread
from sbusd.config.users import ChargedUsers
from sbusd.socket_owner import OVERFLOW_UID, client_user

MAX_CONNECTIONS = 64
"""Connections of the users that may scrape."""

MAX_OTHERS = 16
"""Connections of all other users together: these only learn that they may not scrape."""

MAX_PER_USER = 32
"""Connections of one user."""

_NAMES_SECONDS = 10.0
"""Pause between look-ups of the users: their packages can be installed later."""

_PEER = struct.Struct("=iII")


class Admission:
    """Counts the connections of each user that is *charged*. *users* are the names or numbers of those with the right to scrape."""

    def __init__(self, users: Sequence[str], charged: ChargedUsers) -> None:
        self._names = [user for user in users if not _is_number(user)]
        self._charged = charged
        self._always = frozenset({0, os.geteuid(), *(int(user) for user in users if _is_number(user))})
        self._known = self._always
        self._open: dict[bool, Counter[int | None]] = {True: Counter(), False: Counter()}
        """Connections by charged user, of those that may scrape and of others."""

    async def look_up(self) -> None:
        """Look up the names of the users, in a thread: a directory service can be slow, and no new connection waits for it.
        Until it responds, those that were found before may scrape.

        Raises:
            RuntimeError, MemoryError: no thread is left.
        """
        if self._names:
            self._known = self._always | await in_thread(_ids, self._names)

    async def run(self) -> None:
        """Look up the names again and again, until cancelled."""
        while self._names:
            await asyncio.sleep(_NAMES_SECONDS)
            with contextlib.suppress(RuntimeError, MemoryError):  # those found before may still scrape
                await self.look_up()

    def may_scrape(self, user: int | None) -> bool:
        """Return whether *user* may read the metrics; an unknown user may not."""
        if user is None or user == OVERFLOW_UID:
            return False
        return user in self._known

    def charged_for(self, user: int | None) -> int | None:
        """Return the user that is charged for *user*; None if that is unknown. Keep it: another one can be charged for the next."""
        return None if user is None else self._charged.of(user)

    def enter(self, charged: int | None, *, may_scrape: bool) -> bool:
        """Return whether one more connection is served that *charged* is charged for.

        Then :meth:`leave` must follow, with the same arguments.
        """
        open_by_user = self._open[may_scrape]
        total, own = (MAX_CONNECTIONS, MAX_PER_USER) if may_scrape else (MAX_OTHERS, 1)
        if open_by_user.total() >= total or open_by_user[charged] >= own:
            return False
        open_by_user[charged] += 1
        return True

    def leave(self, charged: int | None, *, may_scrape: bool) -> None:
        """Note the end of a connection."""
        self._open[may_scrape] -= Counter([charged])


def user_of(connection: socket.socket) -> int | None:
    """Return the user at the other end of a Unix or loopback connection, as the kernel reports it; None if it does not."""
    if connection.family != socket.AF_UNIX:
        return client_user(connection)
    try:
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError:
        return None
    return int(user)


def _is_number(user: str) -> bool:
    """Return whether *user* is a number and not a name."""
    return user.isascii() and user.isdecimal()


def _ids(names: Sequence[str]) -> frozenset[int]:
    """Return the numbers of those users that exist."""
    found = set()
    for name in names:
        with contextlib.suppress(KeyError):
            found.add(pwd.getpwnam(name).pw_uid)
    return frozenset(found)
