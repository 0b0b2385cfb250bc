"""The user ids that users have for their containers. Source: subuid(5).

A user can connect with thousands of them. They must not take the place of users with an account in the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

IsSubordinate = Callable[[int], bool]
"""Whether a user id is a subordinate one."""

SUBUID = Path("/etc/subuid")

_MAX_RANGES = 4_096
"""Ranges that are read: each scrape compares every user with each."""


def no_ids(_uid: int) -> bool:
    """Return False: no id is a subordinate one."""
    return False


def accounts_first(uids: Iterable[int], is_subordinate: IsSubordinate) -> list[int]:
    """Return *uids*, those that are not subordinate first, and by number."""
    return sorted(uids, key=lambda uid: (is_subordinate(uid), uid))


def subordinate_ids(file: Path = SUBUID) -> IsSubordinate:
    """Read *file*, and return which ids are subordinate ones: none, if it is not readable."""
    try:
        lines = file.read_text("utf-8", "replace").split("\n")
    except OSError:
        lines = []
    ranges = [found for line in lines[:_MAX_RANGES] if (found := _range_of(line)) is not None]
    return lambda uid: any(uid in each for each in ranges)


def _range_of(line: str) -> range | None:
    """Return the range in a line ``USER:FIRST:COUNT``, None if it has none."""
    _, _, numbers = line.partition(":")
    first, _, count = numbers.partition(":")
    return range(int(first), int(first) + int(count)) if first.isdecimal() and count.isdecimal() else None
