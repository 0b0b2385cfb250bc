"""What each user may have under way: waiting calls, bytes of puts, other calls. What is refused is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sbusd.store.calls.call_errors import CallError


class Allowance:
    """At most *limit* of one thing, *what*, for each user. *refusals* counts by *name*."""

    def __init__(self, name: str, what: str, limit: int, refusals: Counter[str]) -> None:
        self.limit = limit
        self._name = name
        self._what = what
        self._refusals = refusals
        self._used: Counter[int] = Counter()

    @contextmanager
    def held(self, uid: int, amount: int = 1) -> Iterator[None]:
        """Charge *amount* to *uid* inside the context. Raises CallError (EDQUOT)."""
        if self._used[uid] + amount > self.limit:
            self._refusals[self._name] += 1
            words = f"user {uid} has {self._used[uid]} {self._what}, and asks for {amount} more; the limit is {self.limit}"
            raise CallError("EDQUOT", words)
        self._used[uid] += amount
        try:
            yield
        finally:
            self._used[uid] -= amount
            if not self._used[uid]:
                del self._used[uid]
