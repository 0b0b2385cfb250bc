"""Keys ordered by a number that changes; only the first key is needed. A full disk must not make its cleanup slow."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", int, str)

_SPARE = 64
"""Number of outdated items that a small ranking may have."""


class Ranking(Generic[K]):
    """Keys with a number each; the lowest number comes first, then the lowest key. Each call takes logarithmic time on average."""

    def __init__(self) -> None:
        self._numbers: dict[K, int] = {}
        self._items: list[tuple[int, K]] = []
        """A heap. An item is outdated if its key is gone or has another number. It is removed when it becomes the first, or when most
        are outdated."""

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, key: K, number: int) -> None:
        """Set the *number* of *key*."""
        if self._numbers.get(key) == number:
            return
        self._numbers[key] = number
        heappush(self._items, (number, key))
        self._tidy()

    def drop(self, key: K) -> None:
        """Remove *key*. Raises KeyError if it does not exist."""
        del self._numbers[key]
        self._tidy()

    def first(self) -> K | None:
        """Return the key with the lowest number, or None if the ranking is empty."""
        while self._items and self._numbers.get(self._items[0][1]) != self._items[0][0]:
            heappop(self._items)
        return self._items[0][1] if self._items else None

    def _tidy(self) -> None:
        """Remove outdated items if they are the majority."""
        if len(self._items) > 2 * len(self._numbers) + _SPARE:
            self._items = [(number, key) for key, number in self._numbers.items()]
            heapify(self._items)
