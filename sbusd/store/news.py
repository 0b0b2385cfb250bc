"""New messages of streams, for calls of ``store/read`` that wait for them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sbusd.protocol.keys import pattern_matches

MAX_COMPARISONS = 1_000
"""Comparisons of a pattern with a key for the messages of one commit. Above that all waiting calls look for themselves."""


class StreamNews:
    """The waiting calls of each stream, by the pattern that they wait for."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, dict[bytes, set[asyncio.Event]]] = defaultdict(dict)

    def __len__(self) -> int:
        """Return the number of calls that wait."""
        return sum(len(events) for patterns in self._waiting.values() for events in patterns.values())

    @contextmanager
    def watched(self, stream: str, pattern: bytes) -> Iterator[asyncio.Event]:
        """Inside the context, the event is set when *stream* has a new message that matches *pattern*."""
        event = asyncio.Event()
        patterns = self._waiting[stream]
        patterns.setdefault(pattern, set()).add(event)
        try:
            yield event
        finally:
            patterns[pattern].discard(event)
            if not patterns[pattern]:
                del patterns[pattern]

    def arrived(self, stream: str, keys: Collection[bytes]) -> None:
        """Wake the calls that wait for messages with *keys*; without keys, all of the stream: a gap was stored."""
        patterns = self._waiting.get(stream)
        if not patterns:
            return
        distinct = set(keys)
        wakes_all = not distinct or len(patterns) * len(distinct) > MAX_COMPARISONS
        for pattern, events in patterns.items():
            if wakes_all or not pattern or any(pattern_matches(pattern, key) for key in distinct):
                for event in events:
                    event.set()

    def wake_all(self) -> None:
        """Wake all calls."""
        for stream in tuple(self._waiting):
            self.arrived(stream, ())
