"""What one party may have under way at a time, in number and in bytes, so that none can use up what others need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class ConcurrencyLimit:
    """*calls* and *size* bytes for each party, such as a user."""

    def __init__(self, calls: int, size: int) -> None:
        self.calls = calls
        self.size = size
        self._calls: Counter[Hashable] = Counter()
        self._size: Counter[Hashable] = Counter()

    def problem(self, owner: Hashable, size: int) -> str:
        """Return why *owner* cannot have one more call of *size* bytes under way, or no words."""
        if self._calls[owner] >= self.calls:
            return f"{self.calls} calls are already in progress"
        if self._size[owner] + size > self.size:
            return f"calls in progress hold {self._size[owner]} bytes and this one {size}; the limit is {self.size} bytes"
        return ""

    def acquire(self, owner: Hashable, size: int) -> None:
        """Note that a call has begun. Duty: :meth:`release` the same."""
        self._calls[owner] += 1
        self._size[owner] += size

    def release(self, owner: Hashable, size: int) -> None:
        """Note that a call is over."""
        self._calls[owner] -= 1
        self._size[owner] -= size
        if not self._calls[owner]:
            # Who has nothing under way is not remembered.
            del self._calls[owner], self._size[owner]

    def __len__(self) -> int:
        """Return how many calls are under way."""
        return self._calls.total()
