"""Groups, by name or number. Source: getgrnam(3), group(5)."""

from __future__ import annotations

import grp
from dataclasses import dataclass

from sbusd.config.quantities import Spelling, is_whole, show
from sbusd.config.unknown_ids import unknown
from sbusd.protocol.errors import SbusError

LAST_GID = (1 << 32) - 2
"""The greatest group id. The next number means "no group" to the kernel, setgid(2)."""


class UnknownGroupError(SbusError, ValueError):
    """The group does not exist on this machine."""


def find_gid(group: str) -> int:
    """Return the id of *group*. Digits are the id itself, whether or not it has a name; anything else is a name.

    Raises:
        UnknownGroupError: no group has that name, or the number is not a group id.
    """
    if group.isascii() and group.isdigit():
        # Ten digits hold every id; int() of a very long string of digits raises.
        return _checked(int(group) if len(group) <= 10 else -1, show(group))
    if not group or "\0" in group:
        raise UnknownGroupError(f"invalid group name {show(group)}")
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, UnicodeEncodeError):
        raise UnknownGroupError(f"unknown group {show(group)}; use a name that `getent group` lists, or a number") from None


@dataclass(frozen=True, slots=True)
class GroupId(Spelling):
    """A group in a configuration file: a name, or a number with or without quotes."""

    def parse(self, value: object) -> int:
        """Return the id of the group. Raises ValueError if it is unknown, unless unknown ids are allowed."""
        if isinstance(value, str):
            try:
                return find_gid(value)
            except UnknownGroupError as error:
                return unknown(error)
        if is_whole(value):
            return _checked(value, str(value))
        raise ValueError(f"must be the name or number of a group, not {show(value)}")


def _checked(gid: int, shown: str) -> int:
    """Return *gid* if it is a valid group id. Raises UnknownGroupError."""
    if not 0 <= gid <= LAST_GID:
        raise UnknownGroupError(f"invalid group id {shown}: must be 0 to {LAST_GID}")
    return gid
