"""The times of attempts to reconnect: at once, then after delays that double up to a limit."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.05
"""Delay after the first failed attempt."""

MOST_SECONDS = 5.0
"""Longest delay, short enough for a person who restarts a bus by hand. A connection that lasted this long resets the delays."""

_RANDOM = random.SystemRandom()


class Backoff:
    """The attempts to reconnect to a bus. All times are in seconds of the caller's clock."""

    __slots__ = ("_connected_at", "_failures", "attempts", "due", "since")

    def __init__(self, now: float) -> None:
        self.attempts = 0
        """Attempts since the connection was lost."""
        self.due = now
        """Time of the next attempt."""
        self.since = now
        """Time when the connection was lost."""
        self._connected_at = now
        self._failures = 0

    def lost(self, now: float) -> None:
        """Note that the connection was lost: the next attempt is due at once, unless the connection was very short."""
        if now - self._connected_at >= MOST_SECONDS:
            self._failures = 0
        self.since = now
        self.attempts = 0
        self.due = now + (self._delay() if self._failures else 0.0)

    def attempt(self, now: float) -> None:
        """Note an attempt at *now*, and set ``due``, the time of the next attempt if this one fails."""
        self.attempts += 1
        self._failures += 1
        self.due = now + self._delay()

    def connected(self, now: float) -> None:
        """Note that the last attempt succeeded."""
        self._connected_at = now

    def _delay(self) -> float:
        """Return a random delay: many clients lose the same bus at the same moment, and should not all reconnect at the same moment."""
        most = min(MOST_SECONDS, FIRST_SECONDS * (1 << min(self._failures - 1, 10)))
        return most * _RANDOM.uniform(0.5, 1.0)
