"""Permitted callers of a service: users and groups of this host, and remote hosts. Spec: sbus-rpc(7) §7, §9.

The bus verifies users and groups; the relay reports hosts. The two never mix. A caller from a remote host is not a user here, so no
``Allow`` admits it. A request that names a remote host is rejected unless a relay has sent it.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from sbus.arguments import check_count, check_type
from sbus.protocol.credentials import UNKNOWN_ID, Peer
from sbus.protocol.envelope import MAX_TWIN
from sbus.protocol.printable import printable

UNCHECKED = "the service cannot check its callers"
"""Why a request is rejected whose caller cannot be checked."""

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
    by their peer credentials, and the users that the system's database lists. Names are looked up once, here.

    Raises:
        TypeError: they are not tuples or lists of names and numbers.
        ValueError: a number cannot be that of a user or group.
        LookupError: a name is unknown.
    """

    users: tuple[str | int, ...] = ()
    groups: tuple[str | int, ...] = ()
    _uids: frozenset[int] = field(init=False, repr=False, compare=False)
    _gids: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A request must not wait for a directory service.
        object.__setattr__(self, "_uids", frozenset(map(_user_id, _listed(self.users, "users"))))
        object.__setattr__(self, "_gids", frozenset(map(_group_id, _listed(self.groups, "groups"))))

    def admits(self, caller: Peer, groups: frozenset[int] | None = None) -> bool:
        """Return whether *caller*, a member of *groups*, is permitted; without them they are looked up once a minute, if they decide."""
        if caller.uid in self._uids or caller.gid in self._gids:
            return True
        return bool(self._gids) and not self._gids.isdisjoint(groups_of(caller.uid) if groups is None else groups)

    def needs_groups(self, caller: Peer) -> bool:
        """Return whether the groups of *caller* decide, and have to be looked up, which can take as long as a directory service does."""
        if caller.uid in self._uids or caller.gid in self._gids or not self._gids:
            return False
        return time.monotonic() >= _known_groups.get(caller.uid, _UNKNOWN)[0]


@dataclass(frozen=True, slots=True)
class Twins:
    """The remote hosts that may call: those with these ``numbers``; None, the default, means all that the relay admits.

    ``relays`` are the users of this host that may call in the name of a remote host, besides root, ``sbus-relay`` and the service's own.
    Names are looked up once, here.

    Raises:
        TypeError: they are not tuples or lists of numbers, and of names and numbers of users.
        ValueError: a number cannot be that of a host or user.
        LookupError: the name of a user is unknown.
    """

    numbers: tuple[int, ...] | None = None
    relays: tuple[str | int, ...] = ()
    _uids: frozenset[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for number in () if self.numbers is None else _listed(self.numbers, "numbers"):
            check_count(number, "twin", 1, MAX_TWIN)
        uids = set(map(_user_id, _listed(self.relays, "relays")))
        with contextlib.suppress(LookupError):  # the relay is not installed
            uids.add(_user_id(RELAY_USER))
        object.__setattr__(self, "_uids", frozenset(uids))

    def admits(self, twin: int) -> bool:
        """Return whether the remote host *twin* is permitted."""
        return twin > 0 and (self.numbers is None or twin in self.numbers)

    def believes(self, sender: Peer) -> bool:
        """Return whether *sender* may call in the name of a remote host."""
        return sender.uid in {0, os.geteuid()} or sender.uid in self._uids


def calling_problem(command: str, caller: Peer, allow: Allow | None, groups: frozenset[int] | None = None) -> str:
    """Return why *caller* on this host, a member of *groups*, may not call *command*, or no words."""
    try:
        is_admitted = allow is None or allow.admits(caller, groups)
    except Exception:  # of a subclass: one request must not end the service
        return UNCHECKED
    return "" if is_admitted else f"{_author(caller)} may not call {command}"


def relaying_problem(command: str, twin: int, twins: Twins, sender: Peer) -> str:
    """Return why *sender* may not call *command* in the name of the remote host *twin*, or no words."""
    try:
        is_believed, is_admitted = twins.believes(sender), twins.admits(twin)
    except Exception:  # of a subclass: one request must not end the service
        return UNCHECKED
    if not is_believed:
        return f"{_author(sender)} is not a relay and cannot call for a remote host"
    return "" if is_admitted else f"twin {twin} may not call {command}"


def _author(peer: Peer) -> str:
    """Return a description of the user of *peer* for its error."""
    return peer.origin_bytes.decode("ascii", "backslashreplace") if peer.origin else f"user {peer.uid}"


def name_of(peer: Peer) -> str:
    """Return a description of *peer* for the log."""
    if peer.uid == UNKNOWN_ID:
        return f"{printable(peer.key_bytes, 64)} by connection {peer.connection}"
    return f"connection {peer.connection} (uid {peer.uid}, pid {peer.pid})"


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

_UNKNOWN: tuple[float, frozenset[int]] = (float("-inf"), frozenset())


def groups_of(uid: int) -> frozenset[int]:
    """Return the groups of a user in the system's database; none for a user who is not in it."""
    until, groups = _known_groups.get(uid, _UNKNOWN)
    if time.monotonic() >= until:
        try:
            entry = pwd.getpwuid(uid)
            groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
        except (KeyError, OverflowError, ValueError, OSError):
            groups = frozenset()
        _known_groups[uid] = (time.monotonic() + _GROUPS_SECONDS, groups)
        if len(_known_groups) > _REMEMBERED_USERS:
            with contextlib.suppress(KeyError):  # another thread has done so
                _known_groups.popitem(last=False)
    return groups
