"""How users share the disk quota: which users get dedicated segments, and which segments are removed first. Spec: sbus-recorder(8).

Most users share common segments. A user whose rows in common segments exceed a limit gets dedicated segments from then on, which can be
removed without removing rows of others. With n users in the record the limit is a third of a fair share, and at most 1/128 of the quota.

An index entry lists a bounded number of users, and only listed users can be counted. If a write-ahead file has rows of more users, the
others share dedicated segments, and count as one user.

All ids that subuid(5) gives to a user count as that user: with many ids, each below the limit, it could otherwise have the segments of
others removed first. The index has the user that was charged when the segment was written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.record.layout import OTHERS

ROW_BYTES = 256
"""Estimated bytes of a row without its text and payload."""

FEW_USERS = 32
"""The limit for rows in common segments assumes at least this number of users."""

MAX_USERS = 1_000
"""Maximum number of users that an index entry lists. The entry stays far below MAX_ENTRY_BYTES."""

_SIZED = ("key", "reason", "payload")

Key = TypeVar("Key", int, str)

_SPARE_ITEMS = 64
"""Number of outdated items that a small ranking may have."""


CHARGED = "charged"
"""The column of :func:`with_charged`, which segments do not have."""


def with_charged(rows: pa.Table, charged: Callable[[int], int]) -> pa.Table:
    """Return *rows* with the column :data:`CHARGED`: the user that *charged* returns for the uid of the row, null without one."""
    uids = rows.column("uid").combine_chunks()
    known = pc.unique(uids)
    users = pa.array([None if uid is None else charged(uid) for uid in known.to_pylist()], pa.int64())
    return rows.append_column(CHARGED, users.take(pc.index_in(uids, known)))


def bytes_by_user(rows: pa.Table) -> Counter[int]:
    """Return the bytes of *rows*, which have :data:`CHARGED`, by user, before compression: at least the size that they add to a file.
    Rows of the bus itself belong to no user."""
    size = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), rows.num_rows)
    for name in _SIZED:
        length = pc.fill_null(pc.binary_length(rows.column(name)), 0)
        size = pc.add(size, length.cast(pa.int64()).combine_chunks())
    sums = pa.table({"user": rows.column(CHARGED).combine_chunks(), "size": size}).group_by("user").aggregate([("size", "sum")])
    found = zip(sums.column("user").to_pylist(), sums.column("size_sum").to_pylist(), strict=True)
    return Counter({uid: total for uid, total in found if uid is not None})


def listed_users(sizes: Mapping[int, int]) -> dict[int, int]:
    """Return the part of *sizes*, bytes by user, that an index entry lists: the users with the lowest ids.

    Users of a directory service have higher ids than those with an account here, so they never displace these. The result
    depends on the rows only, so a retry gives the same result.
    """
    return {uid: sizes[uid] for uid in sorted(sizes)[:MAX_USERS]}


def user_label(uid: int | None) -> str:
    """Return a name for the users of segments of *uid*; None: common segments."""
    if uid is None:
        return "several users"
    return f"users beyond the {MAX_USERS} lowest user ids" if uid == OTHERS else f"user {uid}"


def common_limit(quota_bytes: int, users: int) -> int:
    """Return the maximum bytes of one of *users* in common segments."""
    return quota_bytes // (4 * max(FEW_USERS, users))


def separate_users(new: Mapping[int, int], common: Mapping[int, int], separate: Collection[int], quota_bytes: int) -> frozenset[int]:
    """Return the users that get dedicated segments: their bytes in common segments, including *new*, exceed the limit.

    *new* are the bytes by user in the current write-ahead file, *common* those in existing common segments; *separate* are the users
    that have
    dedicated segments.
    """
    limit = common_limit(quota_bytes, len(new.keys() | common.keys() | set(separate)))
    return frozenset(uid for uid, size in new.items() if common.get(uid, 0) + size > limit)


def next_to_remove(own: tuple[int, int] | None, common_bytes: int, common_users: int) -> int | None:
    """Return the user whose segments are removed first, or None for the common ones, if these have more bytes per user.

    *own* is the user with the most bytes in dedicated segments, and these bytes.
    """
    return None if own is None or common_bytes > own[1] * max(1, common_users) else own[0]


def spool_limit(quota_bytes: int, rotate_bytes: int) -> int:
    """Return the part of the quota for the write-ahead log. A flood that is faster than the conversion must not remove the record."""
    return min(quota_bytes, max(2 * rotate_bytes, quota_bytes // 4))


class Ranking(Generic[Key]):
    """Keys with a number each; the lowest number comes first, then the lowest key. Each call takes logarithmic time on average: a full
    disk must not make its cleanup slow."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._items: list[tuple[int, Key]] = []
        """A heap. An item is outdated if its key is gone or has another number. It is removed when it becomes the first, or when most
        are outdated."""

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, key: Key, number: int) -> None:
        """Set the *number* of *key*."""
        if self._numbers.get(key) == number:
            return
        self._numbers[key] = number
        heappush(self._items, (number, key))
        self._tidy()

    def drop(self, key: Key) -> None:
        """Remove *key*. Raises KeyError if it does not exist."""
        del self._numbers[key]
        self._tidy()

    def first(self) -> Key | None:
        """Return the key with the lowest number, or None if the ranking is empty."""
        while self._items and self._numbers.get(self._items[0][1]) != self._items[0][0]:
            heappop(self._items)
        return self._items[0][1] if self._items else None

    def _tidy(self) -> None:
        """Remove outdated items if they are the majority."""
        if len(self._items) > 2 * len(self._numbers) + _SPARE_ITEMS:
            self._items = [(number, key) for key, number in self._numbers.items()]
            heapify(self._items)
