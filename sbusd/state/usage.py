"""The memory that the changes of each user take in the state log, until it is rewritten. Spec: sbusd.toml(5), state_bytes.

The patterns in an image are not counted here: ``pattern_bytes`` limits them.
"""

from __future__ import annotations

from collections import Counter


class StateUsage:
    """The size of changes in bytes, by user: in the current log, in the draft of the next one, and in the obsolete one."""

    def __init__(self) -> None:
        self._log: Counter[int] = Counter()
        self._draft: Counter[int] = Counter()
        self._obsolete: Counter[int] = Counter()

    def of(self, uid: int) -> int:
        """Return the size of all changes of a user."""
        # Not with []: for a missing key, a Counter calls a Python function.
        return self._log.get(uid, 0) + self._draft.get(uid, 0) + self._obsolete.get(uid, 0)

    def in_log(self, uid: int) -> int:
        """Return the size of those in the current log: a rewrite would remove them."""
        return self._log[uid]

    def add_to_log(self, uid: int, size: int) -> None:
        """Count a change in the current log."""
        self._log[uid] += size

    def add_to_draft(self, uid: int, size: int) -> None:
        """Count a change in the draft."""
        self._draft[uid] += size

    def commit(self) -> None:
        """Make the draft the current log, and the current log obsolete."""
        self._obsolete += self._log
        self._log, self._draft = self._draft, Counter()

    def drop_draft(self) -> None:
        """Make the draft obsolete."""
        self._obsolete += self._draft
        self._draft = Counter()

    def drop_log(self) -> None:
        """Make the current log obsolete."""
        self._obsolete += self._log
        self._log = Counter()

    def free(self) -> None:
        """Forget the obsolete log: it is freed."""
        self._obsolete = Counter()
