"""A bounded sample of very many times: evenly thinned, so that a long run needs no more memory than a short one."""

from __future__ import annotations

from array import array

MOST_SAMPLES = 65_536
"""Kept at a time: half a megabyte for each subscriber, and enough for 600 beyond the 99th percentile."""


class Samples:
    """Every so many-th of the times that are added; the gap doubles whenever there are too many."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self.times = array("q")
        self._most = most
        self._gap = 1
        self._seen = 0

    def add(self, nanoseconds: int) -> None:
        """Add a time."""
        if self._seen % self._gap == 0:
            if len(self.times) >= self._most:
                self.times = self.times[::2]
                self._gap *= 2
            if self._seen % self._gap == 0:
                self.times.append(nanoseconds)
        self._seen += 1
