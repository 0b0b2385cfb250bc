"""What an operation changed in memory, so that it can be undone when the operation fails. Operations are nested like savepoints."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

_MISSING = object()

Values = Callable[[Any], tuple[Any, ...]]


class UndoLog:
    """The earlier values of changed attributes and entries, for each operation that has begun."""

    def __init__(self) -> None:
        self._objects: list[dict[Any, tuple[tuple[str, ...], tuple[Any, ...]]]] = [{}]
        self._entries: list[list[tuple[dict[Any, Any], Hashable, Any]]] = [[]]

    def begin(self) -> None:
        """Begin an operation within the current one."""
        self._objects.append({})
        self._entries.append([])

    def attributes(self, changed: Any, names: tuple[str, ...], values: Values) -> None:
        """Note that attributes of *changed* will change: those with *names*, which *values* returns."""
        objects = self._objects[-1]
        if changed not in objects:
            objects[changed] = (names, values(changed))

    def entry(self, mapping: dict[Any, Any], key: Hashable) -> None:
        """Note that the entry *key* of *mapping* will be set or removed."""
        self._entries[-1].append((mapping, key, mapping.get(key, _MISSING)))

    def keep(self) -> None:
        """End an operation that has succeeded: its changes belong to the one around it."""
        objects, entries = self._objects.pop(), self._entries.pop()
        for changed, before in objects.items():
            self._objects[-1].setdefault(changed, before)
        self._entries[-1].extend(entries)

    def undo(self) -> None:
        """End an operation that has failed, and undo its changes."""
        for changed, (names, values) in self._objects.pop().items():
            for name, value in zip(names, values, strict=True):
                setattr(changed, name, value)
        for mapping, key, value in reversed(self._entries.pop()):
            if value is _MISSING:
                mapping.pop(key, None)
            else:
                mapping[key] = value

    def clear(self) -> None:
        """Forget everything: the transaction has ended."""
        self._objects = [{}]
        self._entries = [[]]
