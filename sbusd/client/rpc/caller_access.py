"""Permitted callers of a service: users and groups of this host, and remote hosts. Spec: sbus-rpc(7) §7, §9.

The bus verifies users and groups; the relay reports hosts. The two never mix. A caller from a remote host is not a user here, so no
``Allow`` admits it. A request that names a remote host is rejected unless a relay has sent it.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from sbusd.client.arguments import check_count, check_type
from sbusd.protocol.credentials import Peer
from sbusd.protocol.envelope import NUMBER_LIMITS

_GROUPS_SECONDS = 60.0
"""How long the groups of a user are cached: a query of the system's database may take time."""

_REMEMBERED_USERS = 1_024
"""Users in the cache: more than call one service in a minute."""

_LARGEST_ID = (1 << 32) - 1

T = TypeVar("T")

RELAY_USER = "sbus-relay"
"""The user that sbus-relay.service runs as."""


@dataclass(frozen=True, slots=True)
class Allow:
    """The permitted callers: ``users`` and ``groups``, by name or number. The members of a group are the callers whose primary group it is
    by their peer credentials, and the users that the system's database lists.

    Raises:
        TypeError: they are not tuples or lists of names and numbers.
        ValueError: a number cannot be that of a user or group.
        LookupError: a name is unknown.
    """

    users: tuple[str | int, ...] = ()
    groups: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        for user in _listed(self.users, "users"):
            _user_id(user)
        for group in _listed(self.groups, "groups"):
            _group_id(group)

    def admits(self, caller: Peer) -> bool:
        """Return whether *caller* is permitted."""
        if caller.uid in map(_user_id, self.users):
            return True
        wanted = set(map(_group_id, self.groups))
        return bool(wanted) and (caller.gid in wanted or not wanted.isdisjoint(_groups_of(caller.uid)))


@dataclass(frozen=True, slots=True)
class Twins:
    """The remote hosts that may call: those with these ``numbers``; None, the default, means all that the relay admits.

    ``relays`` are the users of this host that may call in the name of a remote host, besides root, ``sbus-relay`` and the service's own.

    Raises:
        TypeError: they are not tuples or lists of numbers, and of names and numbers of users.
        ValueError: a number cannot be that of a host or user.
        LookupError: the name of a user is unknown.
    """

    numbers: tuple[int, ...] | None = None
    relays: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        for number in () if self.numbers is None else _listed(self.numbers, "numbers"):
            check_count(number, "twin", 1, NUMBER_LIMITS["src"])
        for user in _listed(self.relays, "relays"):
            _user_id(user)

    def admits(self, twin: int) -> bool:
        """Return whether the remote host *twin* is permitted."""
        return twin > 0 and (self.numbers is None or twin in self.numbers)

    def believes(self, sender: Peer) -> bool:
        """Return whether *sender* may call in the name of a remote host."""
        if sender.uid in {0, os.geteuid()} or sender.uid in map(_user_id, self.relays):
            return True
        try:
            return sender.uid == _user_id(RELAY_USER)
        except LookupError:
            return False


def _listed(values: tuple[T, ...], name: str) -> tuple[T, ...]:
    """Return *values*. Raises TypeError if they are not a tuple or list: the characters of a str would be names."""
    check_type(values, (tuple, list), name, "a tuple")
    return values


def _user_id(user: str | int) -> int:
    """Return a user's number. Raises LookupError if there is no such user, TypeError, ValueError."""
    if not isinstance(user, str):
        check_count(user, "the number of a user", 0, _LARGEST_ID)
        return user
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        raise LookupError(f"unknown user {user!r}") from None


def _group_id(group: str | int) -> int:
    """Return a group's number. Raises LookupError if there is no such group, TypeError, ValueError."""
    if not isinstance(group, str):
        check_count(group, "the number of a group", 0, _LARGEST_ID)
        return group
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        raise LookupError(f"unknown group {group!r}") from None


_known_groups: OrderedDict[int, tuple[float, frozenset[int]]] = OrderedDict()
"""Each user's groups, and when they expire, by the monotonic clock."""


def _groups_of(uid: int) -> frozenset[int]:
    """Return the groups of a user in the system's database; none for a user who is not in it."""
    now = time.monotonic()
    until, groups = _known_groups.get(uid, (0.0, frozenset[int]()))
    if now >= until:
        try:
            entry = pwd.getpwuid(uid)
            groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
        except (KeyError, OverflowError):
            groups = frozenset()
        _known_groups[uid] = (now + _GROUPS_SECONDS, groups)
        if len(_known_groups) > _REMEMBERED_USERS:
            _known_groups.popitem(last=False)
    return groups
