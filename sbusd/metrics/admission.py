"""Who may scrape: root, the user of this program, and those of the configuration. Each user can connect, so each has a limit.

A limit is that of the user who is charged for a uid, subuid(5). The right to scrape is that of the uid itself.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence

from sbusd.config.subordinate_ids import ChargedUsers
from sbusd.socket_owner import OVERFLOW_UID, client_user

MAX_CONNECTIONS = 64
"""Connections of the users that may scrape."""

MAX_OTHERS = 16
"""Connections of all other users together: these only learn that they may not scrape."""

MAX_PER_USER = 32
"""Connections of one user."""

_NAMES_SECONDS = 10.0
"""Time for which the numbers of the users are remembered: their packages can be installed later."""

_PEER = struct.Struct("=iII")


class Admission:
    """Counts the connections of each user that is *charged*. *users*, who may scrape, are names or numbers."""

    def __init__(self, users: Sequence[str], charged: ChargedUsers, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._charged = charged
        self._clock = clock
        self._known: frozenset[int] = frozenset()
        self._known_until = -1.0
        self._open: dict[bool, Counter[int | None]] = {True: Counter(), False: Counter()}
        """Connections by charged user, of those that may scrape and of others."""

    def may_scrape(self, user: int | None) -> bool:
        """Return whether *user* may read the metrics; an unknown user may not."""
        if user is None or user == OVERFLOW_UID:
            return False
        if self._clock() >= self._known_until:
            self._known = frozenset({0, os.geteuid(), *_ids(self._users)})
            self._known_until = self._clock() + _NAMES_SECONDS
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


def _ids(users: Sequence[str]) -> list[int]:
    """Return the numbers of those of *users* that exist."""
    found = []
    for user in users:
        if user.isascii() and user.isdecimal():
            found.append(int(user))
            continue
        try:
            found.append(pwd.getpwnam(user).pw_uid)
        except KeyError:
            continue
    return found
