"""When to try again to connect: at once, then after delays that double up to a bound."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.05
"""Delay after the first try that failed."""

MOST_SECONDS = 5.0
"""Longest delay; a person who restarts a bus by hand notices no more than this. A connection that lasted as long counts as a good one."""

_RANDOM = random.SystemRandom()


class Backoff:
    """The tries to reach a bus again. All times are seconds of the caller's clock."""

    __slots__ = ("_connected_at", "_failures", "attempts", "due", "since")

    def __init__(self, now: float) -> None:
        self.attempts = 0
        """Tries since the connection was lost."""
        self.due = now
        """When the next try may be made."""
        self.since = now
        """When the connection was lost."""
        self._connected_at = now
        self._failures = 0

    def lost(self, now: float) -> None:
        """Take note that the connection was lost: the next try may be made at once, unless this one too had only just been made."""
        if now - self._connected_at >= MOST_SECONDS:
            self._failures = 0
        self.since = now
        self.attempts = 0
        self.due = now + (self._delay() if self._failures else 0.0)

    def attempt(self, now: float) -> None:
        """Take note of a try at *now*, and set ``due``, when the next one may be made if this one fails."""
        self.attempts += 1
        self._failures += 1
        self.due = now + self._delay()

    def connected(self, now: float) -> None:
        """Take note that the last try succeeded."""
        self._connected_at = now

    def _delay(self) -> float:
        """Return a delay; many clients lose the same bus at the same moment, and should not all come back at one."""
        most = min(MOST_SECONDS, FIRST_SECONDS * (1 << min(self._failures - 1, 10)))
        return most * _RANDOM.uniform(0.5, 1.0)
