"""What each user has written to the log of the kept state, which is memory until the log is rewritten. Spec: sbusd.toml(5), state_bytes.

The patterns in an image are not counted here: ``pattern_bytes`` bounds them.
"""

from __future__ import annotations

from collections import Counter


class StateUsage:
    """The bytes of changes, by user: in the log that counts, in the draft of the next one, and in the one whose memory is being freed."""

    def __init__(self) -> None:
        self._log: Counter[int] = Counter()
        self._draft: Counter[int] = Counter()
        self._waste: Counter[int] = Counter()

    def of(self, uid: int) -> int:
        """Return how many bytes a user's changes take."""
        # Not by []: a Counter makes a call of Python's for each key that it does not have.
        return self._log.get(uid, 0) + self._draft.get(uid, 0) + self._waste.get(uid, 0)

    def in_log(self, uid: int) -> int:
        """Return how many of them are in the log that counts: those that a new log would do without."""
        return self._log[uid]

    def add_to_log(self, uid: int, size: int) -> None:
        """Count a change in the log that counts."""
        self._log[uid] += size

    def add_to_draft(self, uid: int, size: int) -> None:
        """Count a change in the draft."""
        self._draft[uid] += size

    def commit(self) -> None:
        """Let the draft be the log that counts, and that be what is freed."""
        self._waste += self._log
        self._log, self._draft = self._draft, Counter()

    def drop_draft(self) -> None:
        """Let the draft be what is freed."""
        self._waste += self._draft
        self._draft = Counter()

    def drop_log(self) -> None:
        """Let the log be what is freed: it does not count any more."""
        self._waste += self._log
        self._log = Counter()

    def free(self) -> None:
        """Forget what is freed."""
        self._waste = Counter()
