"""A directory service that does not answer until it is released, except about some users, for tests of look-ups."""

from __future__ import annotations

import threading
from collections.abc import Mapping

ANSWER_SECONDS = 60.0


class HeldDirectory:
    """The groups of users: *groups* by uid, and *others* for the rest. It answers at once about the user *quick* alone."""

    def __init__(self, quick: int, groups: Mapping[int, frozenset[int]], others: frozenset[int] = frozenset()) -> None:
        self.asked: list[int] = []
        self.answers = threading.Event()
        self._quick = quick
        self._groups = groups
        self._others = others

    def groups_of(self, uid: int) -> frozenset[int]:
        """Return the groups of a user."""
        self.asked.append(uid)
        if uid != self._quick:
            assert self.answers.wait(ANSWER_SECONDS)
        return self._groups.get(uid, self._others)
