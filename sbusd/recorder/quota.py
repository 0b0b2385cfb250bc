"""How the disk quota is shared: whose rows get segments of their own, and whose segments go first. Spec: sbus-recorder(8).

The rows of most users share the segments of a write-ahead. A user with more than a small part of the quota in such segments gets
segments of their own from then on, so that these can be removed without anybody else's. With n users in the record that small part is a
third of a fair share, and never more than 1/128 of the quota.

An index entry names a bounded number of users, and users that are not named cannot be counted. If a write-ahead has rows of more users,
the further ones share segments of their own, and count as one user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.record.index import OTHERS

ROW_BYTES = 256
"""What a row takes besides its text and payload, about."""

FEW_USERS = 32
"""Up to so many users share the quota, a user's part in common segments is bounded as if there were so many."""

MAX_USERS = 1_000
"""Users whose parts an index entry names: it stays far below the longest entry that is read."""

_SIZED = ("key", "reason", "payload")


def bytes_by_user(rows: pa.Table) -> Counter[int]:
    """Return how much *rows* take for each user, before they are compressed: never less than what they add to a file. Rows of the bus
    itself are nobody's."""
    size = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), rows.num_rows)
    for name in _SIZED:
        length = pc.fill_null(pc.binary_length(rows.column(name)), 0)
        size = pc.add(size, length.cast(pa.int64()).combine_chunks())
    sums = pa.table({"uid": rows.column("uid").combine_chunks(), "size": size}).group_by("uid").aggregate([("size", "sum")])
    found = zip(sums.column("uid").to_pylist(), sums.column("size_sum").to_pylist(), strict=True)
    return Counter({uid: total for uid, total in found if uid is not None})


def listed_users(sizes: Mapping[int, int]) -> dict[int, int]:
    """Return the part of *sizes*, bytes by user, that an index entry names: of the users with the lowest numbers.

    A person with many users has subordinate ones, subuid(5), or those of containers. They have higher numbers than users that the
    administrator made, and so never take the place of these. Only the rows decide, so a retry decides the same.
    """
    return {uid: sizes[uid] for uid in sorted(sizes)[:MAX_USERS]}


def user_label(uid: int | None) -> str:
    """Return whose the rows in segments of *uid* are, for people; None is for common segments."""
    if uid is None:
        return "several users"
    return f"users beyond the {MAX_USERS} lowest user ids" if uid == OTHERS else f"user {uid}"


def common_limit(quota_bytes: int, users: int) -> int:
    """Return how much one of so many *users* may have in common segments."""
    return quota_bytes // (4 * max(FEW_USERS, users))


def separate_users(new: Mapping[int, int], common: Mapping[int, int], separate: Collection[int], quota_bytes: int) -> frozenset[int]:
    """Return the users whose rows get segments of their own: those with more in common segments, with *new*, than the limit.

    *new* is what each has in the write-ahead at hand, *common* in the common segments that there are, and *apart* are those who have
    segments of their own already.
    """
    limit = common_limit(quota_bytes, len(new.keys() | common.keys() | set(separate)))
    return frozenset(uid for uid, size in new.items() if common.get(uid, 0) + size > limit)


def next_to_remove(own: tuple[int, int] | None, common_bytes: int, common_users: int) -> int | None:
    """Return the user whose segments are removed first, or None for the common ones, if these have more for each of *common_users*.

    *own* is the user with most bytes in own segments, and these bytes."""
    return None if own is None or common_bytes > own[1] * max(1, common_users) else own[0]


def spool_limit(quota_bytes: int, rotate_bytes: int) -> int:
    """Return how much of the quota the write-ahead may take. A flood that is faster than the conversion must not remove the record."""
    return min(quota_bytes, max(2 * rotate_bytes, quota_bytes // 4))
