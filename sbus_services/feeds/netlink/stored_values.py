"""Keeps the last values in sbus-store(8) like the state of the feed. Spec: sbus-feed(8), LAST VALUES.

The feed publishes as it does without a store, and the store keeps what it receives. Two things remain to do: to remove the values of
entries that do not exist, also those that disappeared while no feed was running, and to have all published again for a store that has
started later. Both follow messages of the store about its state, in a thread of its own: the feed never waits for the store.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from sbus import Bus, Closed, Disconnected, Message, SbusError
from sbus.store.errors import StoreError, StoreNotRunning
from sbus.store.items import StoredMessage

STREAM = "net"
"""The stream of the package's drop-in."""

PATTERNS = ("net/link/", "net/address/", "net/neighbour/")
"""Keys that at most one entry has, unlike those of routes."""

STATE = "store/state"

ROUNDS = 2
"""Times that values are compared after a change: at the first one the message of a removal may not be stored yet."""

LEAST_SECONDS = 1.0
"""The least time between two comparisons: any user may publish states where no rule forbids it."""

END_SECONDS = 5.0
"""How long the end of the feed waits for the thread. It ends with the process anyway."""

MAX_FORGOTTEN = 128
"""Keys of one call."""


class PublishedKeys:
    """The keys of the entries that exist, of those under *heads*. The feed changes them, and another thread reads them."""

    def __init__(self, heads: tuple[str, ...] = PATTERNS) -> None:
        self._heads = heads
        self._lock = threading.Lock()
        self._keys: set[str] = set()
        self._removals = 0
        self.is_complete = False
        """Whether the first snapshot was published."""

    def note(self, key: str, *, is_removed: bool) -> None:
        """Add or remove *key*, before the message about it is published."""
        if key.startswith(self._heads):
            with self._lock:
                if is_removed:
                    self._keys.discard(key)
                    self._removals += 1
                else:
                    self._keys.add(key)

    def copy(self) -> tuple[frozenset[str], int]:
        """Return the keys, and the number of removals until now."""
        with self._lock:
            return frozenset(self._keys), self._removals


class StoredValues:
    """Compares the values with *keys* on a connection of its own, *bus*, until closed. *request* asks the feed for a snapshot.

    The values are those of *stream* that match *patterns*.
    """

    def __init__(
        self,
        bus: Bus,
        keys: PublishedKeys,
        log: Callable[[str], None],
        *,
        namespace: str | None = None,
        request: str,
        stream: str = STREAM,
        patterns: tuple[str, ...] = PATTERNS,
    ) -> None:
        self._bus = bus
        self._keys = keys
        self._log = log
        self._namespace = namespace
        self._request = request
        self._stream = stream
        self._patterns = patterns
        self._started: object = None
        self._removals = 0
        self._rounds = 0
        self._thread = threading.Thread(target=self._run, name="stored values", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and close the connection."""
        self._bus.close()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        """Follow the states of the store. An error ends it, and the feed goes on without."""
        try:
            with self._bus.subscribe(STATE, on_gap=lambda _gap: None) as states:
                due = time.monotonic()
                for state in states.items():
                    if isinstance(state, Message) and time.monotonic() >= due:
                        self._note(state)
                        due = time.monotonic() + LEAST_SECONDS
        except (Closed, Disconnected):
            pass
        except (SbusError, OSError) as error:
            self._log(f"stopped comparing last values in the store with the state: {error}")

    def _note(self, state: Message) -> None:
        """Compare the values if the store is another one than before, or entries were removed."""
        try:
            started = json.loads(state.payload)["started"]
        except (ValueError, RecursionError, KeyError, TypeError):
            return
        removals = self._keys.copy()[1]
        if started != self._started or removals != self._removals:
            self._rounds = ROUNDS
        if not self._rounds or not self._keys.is_complete:
            return
        try:
            self._compare()
        except (Closed, Disconnected):
            raise
        except StoreNotRunning:
            return
        except StoreError as error:
            if error.code != "ENOENT":  # the store has no such stream
                self._log(f"cannot compare last values in the store with the state: {error}")
        self._started, self._removals = started, removals
        self._rounds -= 1

    def _compare(self) -> None:
        """Remove values of entries that do not exist, and request a snapshot if values are missing. Raises SbusError."""
        own = [each for each in self._bus.store.last(*self._patterns) if each.uid == os.geteuid()]
        existing, _ = self._keys.copy()
        stale = [each.key for each in own if each.key not in existing and self._is_of_this_namespace(each)]
        for part in _parts(stale):
            self._bus.store.forget(self._stream, *part)
        # An entry that was new while its former value was removed has lost the value: it is stored again too.
        existing, _ = self._keys.copy()
        if existing & set(stale) or existing - {each.key for each in own}:
            self._bus.publish(self._request, b"")

    def _is_of_this_namespace(self, value: StoredMessage) -> bool:
        """Return whether *value* is from a feed of this network namespace: others of this user can share the bus."""
        try:
            found = value.json()
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and found.get("namespace") == self._namespace


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield *keys* in lists that fit into one call."""
    return (keys[start : start + MAX_FORGOTTEN] for start in range(0, len(keys), MAX_FORGOTTEN))
