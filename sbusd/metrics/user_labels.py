"""The value of the label ``user``: the name of a user, or its number if no name is certain to mean this user alone."""

from __future__ import annotations

import pwd
from collections.abc import Iterable

OTHER = "other"
"""The value for all users together that have no series of their own."""


def user_labels(uids: Iterable[int]) -> dict[int, str]:
    """Return a label for each of *uids*, all of them different. It reads the user database, which may block."""
    return {uid: _label(uid) for uid in uids}


def _label(uid: int) -> str:
    """Return the name of a user. A name of digits, :data:`OTHER`, or a name that two users have would mean another user."""
    try:
        name = pwd.getpwuid(uid).pw_name
        is_certain = name not in ("", OTHER) and not name.isdigit() and name.isprintable() and pwd.getpwnam(name).pw_uid == uid
    except (KeyError, OverflowError):
        return str(uid)
    return name if is_certain else str(uid)
