"""What each user may have under way: waiting calls, bytes of puts, other calls. What is refused is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sbusd.config.users import ChargedUsers
from sbusd.store.calls.call_errors import CallError


class Allowance:
    """At most *limit* of one thing, *what*, for each user that is *charged*. *refusals* counts by *name*."""

    def __init__(self, name: str, what: str, limit: int, *, refusals: Counter[str], charged: ChargedUsers) -> None:
        self.limit = limit
        self._name = name
        self._what = what
        self._refusals = refusals
        self._charged = charged
        self._used: Counter[int] = Counter()

    @contextmanager
    def held(self, uid: int, amount: int = 1) -> Iterator[None]:
        """Charge *amount* for *uid* inside the context. Raises CallError (EDQUOT)."""
        user = self._charged.of(uid)
        if self._used[user] + amount > self.limit:
            self._refusals[self._name] += 1
            words = f"user {user} has {self._used[user]} {self._what}, and asks for {amount} more; the limit is {self.limit}"
            raise CallError("EDQUOT", words)
        self._used[user] += amount
        try:
            yield
        finally:
            self._used[user] -= amount
            if not self._used[user]:
                del self._used[user]
