"""Users and groups, by name or number: getpwnam(3), getgrnam(3), passwd(5), group(5).

An unknown name is an error for a command, and a marked id for a bus that has to start.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sbusd.config.quantities import Spelling, is_whole, show
from sbusd.protocol.errors import SbusError

NO_ID = (1 << 32) - 1
"""Not an id of any user or group: to the kernel it means "none", setuid(2). A rule about it matches no client."""

LAST_ID = NO_ID - 1
"""The greatest id of a user or group."""

_are_allowed: ContextVar[bool] = ContextVar("_are_allowed", default=False)


class UnknownUserError(SbusError, ValueError):
    """The user does not exist on this machine."""


class UnknownGroupError(SbusError, ValueError):
    """The group does not exist on this machine."""


class UnknownId(int):
    """:data:`NO_ID` instead of the id of an unknown name; ``reason`` is for the administrator."""

    reason: str

    def __new__(cls, reason: str) -> UnknownId:
        """Return the id."""
        made = super().__new__(cls, NO_ID)
        made.reason = reason
        return made


@dataclass(frozen=True, slots=True)
class UserId(Spelling):
    """A user in a configuration file: a name, or a number with or without quotes."""

    def parse(self, value: object) -> int:
        """Return the id of the user. Raises ValueError if it is unknown, unless unknown ids are allowed."""
        return _USERS.parse(value)


@dataclass(frozen=True, slots=True)
class GroupId(Spelling):
    """A group in a configuration file: a name, or a number with or without quotes."""

    def parse(self, value: object) -> int:
        """Return the id of the group. Raises ValueError if it is unknown, unless unknown ids are allowed."""
        return _GROUPS.parse(value)


def find_uid(user: str) -> int:
    """Return the id of *user*. Digits are the id itself, whether or not it has a name; anything else is a name.

    Raises:
        UnknownUserError: no user has that name, or the number is not a user id.
    """
    return _USERS.find(user)


@contextmanager
def unknown_ids_allowed() -> Iterator[None]:
    """In this context an unknown name in a configuration is an :class:`UnknownId` instead of an error."""
    token = _are_allowed.set(True)
    try:
        yield
    finally:
        _are_allowed.reset(token)


@dataclass(frozen=True, slots=True)
class _Database:
    """A database of the system: of users, or of groups."""

    name: str
    noun: str
    error: type[UnknownUserError | UnknownGroupError]
    look_up: Callable[[str], int]

    def find(self, name: str) -> int:
        """Return the id of *name*, or of a number in digits. Raises ``error``."""
        if name.isascii() and name.isdigit():
            # Ten digits hold every id; int() of a very long string of digits raises.
            return self._checked(int(name) if len(name) <= 10 else -1, show(name))
        if not name or "\0" in name:
            raise self.error(f"invalid {self.noun} name {show(name)}")
        try:
            return self.look_up(name)
        except (KeyError, UnicodeEncodeError):
            raise self.error(f"unknown {self.noun} {show(name)}; use a name that `getent {self.name}` lists, or a number") from None

    def parse(self, value: object) -> int:
        """Return the id that *value* in a file means. Raises ValueError."""
        if isinstance(value, str):
            try:
                return self.find(value)
            except self.error as error:
                if not _are_allowed.get():
                    raise
                return UnknownId(str(error))
        if isinstance(value, UnknownId):
            return value
        if is_whole(value):
            return self._checked(value, str(value))
        raise ValueError(f"must be the name or number of a {self.noun}, not {show(value)}")

    def _checked(self, number: int, shown: str) -> int:
        """Return *number* if it is a valid id. Raises ``error``."""
        if not 0 <= number <= LAST_ID:
            raise self.error(f"invalid {self.noun} id {shown}: must be 0 to {LAST_ID}")
        return number


_USERS = _Database("passwd", "user", UnknownUserError, lambda name: pwd.getpwnam(name).pw_uid)
_GROUPS = _Database("group", "group", UnknownGroupError, lambda name: grp.getgrnam(name).gr_gid)
