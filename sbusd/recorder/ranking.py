"""Keys in the order of a number that changes, of which only the first is asked for: what fills a disk must not slow its cleaning."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

_SPARE = 64
"""Outdated items that a small ranking may have."""


class Ranking(Generic[K]):
    """Keys with a number each, the least first, and of equal numbers the least key. Each call takes logarithmic time on average."""

    def __init__(self) -> None:
        self._numbers: dict[K, int] = {}
        self._items: list[tuple[int, K]] = []
        """A heap. An item is outdated if its key has another number now, or none; it stays until it is the first, or most items are."""

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, key: K, number: int) -> None:
        """Give *key* its *number*, in place of an older one."""
        if self._numbers.get(key) == number:
            return
        self._numbers[key] = number
        heappush(self._items, (number, key))
        self._tidy()

    def drop(self, key: K) -> None:
        """Take out *key*. Raises KeyError if it is not there."""
        del self._numbers[key]
        self._tidy()

    def first(self) -> K | None:
        """Return the key with the least number, or None if the ranking is empty."""
        while self._items and self._numbers.get(self._items[0][1]) != self._items[0][0]:
            heappop(self._items)
        return self._items[0][1] if self._items else None

    def _tidy(self) -> None:
        """Forget outdated items once they are more than the others."""
        if len(self._items) > 2 * len(self._numbers) + _SPARE:
            self._items = [(number, key) for key, number in self._numbers.items()]
            heapify(self._items)
