"""The time between two attempts to connect: it doubles, and is random so that not all come back at the same moment."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.1
MAX_SECONDS = 5.0
STABLE_SECONDS = 10.0
"""A connection that lasted for so long is a success, after which the delays begin again."""


class Backoff:
    """The delays of the connections to one bus, one address or one set of servers."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def delay(self) -> float:
        """Return the seconds to wait before the next attempt: from half the current step to all of it."""
        step, self._next = self._next, min(self._next * 2, MAX_SECONDS)
        return step * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def lasted(self, seconds: float) -> None:
        """Note that a connection ended after *seconds*."""
        if seconds >= STABLE_SECONDS:
            self._next = FIRST_SECONDS
