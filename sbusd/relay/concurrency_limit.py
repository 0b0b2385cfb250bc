"""A limit on the concurrent calls of each owner, in number and bytes, so that no owner uses the resources of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class ConcurrencyLimit:
    """At most *calls* concurrent calls and *size* bytes for each owner, such as a user."""

    def __init__(self, calls: int, size: int) -> None:
        self.calls = calls
        self.size = size
        self._calls: Counter[Hashable] = Counter()
        self._size: Counter[Hashable] = Counter()

    def problem(self, owner: Hashable, size: int) -> str:
        """Return why *owner* may not start another call of *size* bytes; empty if it may."""
        if self._calls[owner] >= self.calls:
            return f"{self.calls} calls are already in progress"
        if self._size[owner] + size > self.size:
            return f"calls in progress hold {self._size[owner]} bytes and this one {size}; the limit is {self.size} bytes"
        return ""

    def acquire(self, owner: Hashable, size: int) -> None:
        """Record the start of a call. Duty: :meth:`release` it with the same arguments."""
        self._calls[owner] += 1
        self._size[owner] += size

    def release(self, owner: Hashable, size: int) -> None:
        """Record the end of a call."""
        self._calls[owner] -= 1
        self._size[owner] -= size
        if not self._calls[owner]:
            del self._calls[owner], self._size[owner]

    def __len__(self) -> int:
        """Return the number of concurrent calls of all owners."""
        return self._calls.total()
