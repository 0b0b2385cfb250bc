"""Users, by name or number. Source: getpwnam(3), passwd(5)."""

from __future__ import annotations

import pwd
from dataclasses import dataclass

from sbusd.config.quantities import Spelling, is_whole, show
from sbusd.config.unknown_ids import UnknownId, unknown
from sbusd.protocol.errors import SbusError

LAST_UID = (1 << 32) - 2
"""The greatest user id. The next number means "no user" to the kernel, setuid(2)."""


class UnknownUserError(SbusError, ValueError):
    """The user does not exist on this machine."""


def find_uid(user: str) -> int:
    """Return the id of *user*. Digits are the id itself, whether or not it has a name; anything else is a name.

    Raises:
        UnknownUserError: no user has that name, or the number is not a user id.
    """
    if user.isascii() and user.isdigit():
        # Ten digits hold every id; int() of a very long string of digits raises.
        uid = int(user) if len(user) <= 10 else -1
        return _checked(uid, show(user))
    if not user or "\0" in user:
        raise UnknownUserError(f"invalid user name {show(user)}")
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UnknownUserError(f"unknown user {show(user)}; use a name that `getent passwd` lists, or a number") from None


@dataclass(frozen=True, slots=True)
class UserId(Spelling):
    """A user in a configuration file: a name, or a number with or without quotes."""

    def parse(self, value: object) -> int:
        """Return the id of the user. Raises ValueError if it is unknown, unless unknown ids are allowed."""
        if isinstance(value, str):
            try:
                return find_uid(value)
            except UnknownUserError as error:
                return unknown(error)
        if isinstance(value, UnknownId):
            return value
        if is_whole(value):
            return _checked(value, str(value))
        raise ValueError(f"must be the name or number of a user, not {show(value)}")


def _checked(uid: int, shown: str) -> int:
    """Return *uid* if it is a valid user id. Raises UnknownUserError."""
    if not 0 <= uid <= LAST_UID:
        raise UnknownUserError(f"invalid user id {shown}: must be 0 to {LAST_UID}")
    return uid
