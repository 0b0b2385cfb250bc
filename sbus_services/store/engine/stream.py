"""A stream or queue as the engine sees it: its settings and figures, the keys that it stores, and the order of its jobs.

In a queue in order, of each key only one job is under way, and the next one is the earliest of those that wait. A job that was put with
a delay takes its place in the line when the delay ends, so it does not block others before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from sbus.protocol.keys import KeySpace, intersection
from sbus.protocol.printable import printable
from sbus_programs.config.store import NEVER_STORED, QueueSettings, StreamSettings
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import QueueFigures, StreamFigures
from sbus_services.store.engine.schema import BLOCKED, LEASED, READY, RETRYING, message_id

_KEYS = KeySpace()

_NEVER = tuple(head.encode() for head in (*NEVER_STORED, "!/"))


class KeyMatcher:
    """Patterns, compiled: most are a prefix that ends with a separator, or one key.

    Not a `PatternIndex`: only whether any matches is asked, for each message, and ``startswith`` answers without splitting the key.
    """

    def __init__(self, patterns: Sequence[bytes]) -> None:
        """*patterns* are those of one stream."""
        self._prefixes = tuple(each for each in patterns if b"*" not in each and (not each or each.endswith(b"/")))
        self._keys = frozenset(each for each in patterns if b"*" not in each and each and not each.endswith(b"/"))
        self._others = tuple(each for each in patterns if b"*" in each)

    def matches(self, key: bytes) -> bool:
        """Return whether a pattern matches *key*, which the store may keep."""
        if key.startswith(_NEVER):
            return False
        return key.startswith(self._prefixes) or key in self._keys or any(_KEYS.matches(each, key) for each in self._others)


class KeyMap:
    """The streams by their keys."""

    def __init__(self, streams: Sequence[StreamSettings]) -> None:
        """*streams* are those of the configuration; no key matches two of them."""
        self._patterns = [(each.name, each.patterns) for each in streams]
        self._matchers = [(each.name, KeyMatcher(each.patterns)) for each in streams]

    def stream_of(self, key: bytes) -> str | None:
        """Return the name of the stream that stores *key*, or None."""
        return next((name for name, matcher in self._matchers if matcher.matches(key)), None)

    def streams_of(self, pattern: bytes) -> list[str]:
        """Return the names of the streams that can have keys that *pattern* matches."""
        return [name for name, patterns in self._patterns if any(intersection(pattern, each) is not None for each in patterns)]


_UNDER_WAY = f"SELECT 1 FROM job WHERE queue = ? AND line = ? AND state IN ({READY}, {LEASED}, {RETRYING}) LIMIT 1"
_NEXT = f"SELECT id FROM job WHERE queue = ? AND line = ? AND state = {BLOCKED} ORDER BY id LIMIT 1"
_UNBLOCK = f"UPDATE job SET state = {READY}, at = NULL WHERE id = ?"


def line_of(key: bytes) -> int:
    """Return the number of the line of *key*. Two keys can have the same one; then their jobs share a line."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big", signed=True)


class JobLines:
    """The lines of all ordered queues."""

    def __init__(self, database: Database) -> None:
        self._run = database.execute

    def is_busy(self, queue: QueueFigures, line: int) -> bool:
        """Return whether a job of *line* is under way: ready, with a worker, or between two tries."""
        return bool(self._run(_UNDER_WAY, (queue.id, line)).fetchall())

    def advance(self, queue: QueueFigures, line: int) -> None:
        """Make the next job of *line* ready, if none is under way. The caller has noted that *queue* changes."""
        if not self.is_busy(queue, line):
            for (number,) in self._run(_NEXT, (queue.id, line)).fetchall():
                self._run(_UNBLOCK, (number,))
                queue.move(BLOCKED, READY)


@dataclass(slots=True)
class Stream:
    """A stream of the configuration."""

    settings: StreamSettings
    figures: StreamFigures
    matcher: KeyMatcher
    queue: Queue | None = None
    """Its queue, if it has one."""

    @property
    def name(self) -> str:
        """Its name for an error text."""
        return printable(self.settings.name)


@dataclass(slots=True)
class Queue:
    """A queue of the configuration."""

    settings: QueueSettings
    figures: QueueFigures

    @property
    def name(self) -> str:
        """Its name for an error text."""
        return printable(self.settings.name)


def id_range(figures: StreamFigures, first_seq: int = 0) -> tuple[int, int]:
    """Return the numbers of the first and last message of a stream, from *first_seq* on."""
    return message_id(figures.id, first_seq), message_id(figures.id, figures.last_seq)
