"""What earlier runs have seen of an index: one file in the location of the tables.

It is replaced after the tables of new segments were published. A run that is killed before that replaces nothing, so the next run compares
these hours with their manifests again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable
from typing import Any

from sbusd.archive.files import TablesError
from sbusd.archive.record.index import DayName, IndexListing
from sbusd.archive.storage.store import FileStore

KNOWN_INDEX = ".known-index.json"
"""The name of the file."""

_VERSION = 1
_MAX_BYTES = 1 << 30


class KnownIndex:
    """The files of the index that earlier runs have seen."""

    def __init__(self, store: FileStore) -> None:
        """Read the file in *store*, the tables. Raises TablesError: it is damaged; OSError, StorageError."""
        self._store = store
        self.is_new = False
        """Whether the file is missing: in the first run."""
        self._names: frozenset[str] = frozenset()
        self._days: dict[str, str] = {}
        try:
            content = store.read(KNOWN_INDEX, _MAX_BYTES)
        except FileNotFoundError:
            self.is_new = True
            return
        try:
            self._load(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TablesError(store.path(KNOWN_INDEX), f"damaged file: {error}. Remove it: all hours are compared once") from None

    def _load(self, value: Any) -> None:
        """Set the state to *value*. Raises ValueError, KeyError, TypeError, AttributeError."""
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        self._names = frozenset(value["names"])
        self._days = dict(value["days"])

    def new_names(self, names: Iterable[str]) -> list[str]:
        """Return those of *names*, files of single entries, that are unknown."""
        return [name for name in names if name not in self._names]

    def changed_days(self, listing: IndexListing) -> list[DayName]:
        """Return the day files of *listing* that are new or were replaced."""
        return [day for day, fingerprint in listing.days.items() if self._days.get(day.file) != fingerprint]

    def save(self, listing: IndexListing, unreadable: Collection[DayName] = ()) -> None:
        """Replace the file, unless nothing has changed; day files that are *unreadable* stay unknown. Raises OSError, StorageError."""
        days = {day.file: fingerprint for day, fingerprint in listing.days.items() if day not in unreadable}
        names = frozenset(listing.names)
        if not self.is_new and (names, days) == (self._names, self._days):
            return
        value = {"version": _VERSION, "names": sorted(names), "days": days}
        self._store.put(KNOWN_INDEX, io.BytesIO(json.dumps(value, separators=(",", ":")).encode()))
        self._names, self._days, self.is_new = names, days, False
