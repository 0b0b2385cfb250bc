"""For how long the recipients of one user have held up a paced publisher of another: the plain twin of ``pacing``.

And how long waits took.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

PACED_BYTES = 32_768
"""Bytes of a paced publisher that are routed before it is looked who is slow."""


@dataclass(slots=True)
class Hold:
    """What one user's recipients have made a publisher wait; all times in seconds of the monotonic clock."""

    limit: float
    """Of a second; all of it bounds nothing."""
    count: int = 0
    """Recipients that it waits for now."""
    since: float = 0.0
    until: float = 0.0
    """When it goes on, whatever they have taken."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """When each wait of the last second ended, and how long it was."""

    def spent(self) -> float:
        """Return for how long the publisher has waited in the last second, or somewhat more."""
        now = time.monotonic()
        self.waits = [(end, length) for end, length in self.waits if end > now - 1.0]
        return sum(length for _, length in self.waits) + (now - self.since if self.count else 0.0)

    def has_time(self) -> bool:
        """Return whether the publisher waits for those recipients now."""
        return self.limit >= 1.0 or self.spent() < self.limit

    def begin(self) -> None:
        """Count one more recipient that the publisher waits for."""
        if not self.count:
            now = time.monotonic()
            self.until = float("inf") if self.limit >= 1.0 else now + self.limit - self.spent()
            self.since = now
        self.count += 1

    def end(self) -> None:
        """Count one less, and with the last charge the time."""
        self.count -= 1
        if not self.count:
            self.charge(time.monotonic() - self.since)

    def charge(self, seconds: float) -> None:
        """Count a wait that has just ended."""
        self.waits.append((time.monotonic(), seconds))


@dataclass(slots=True)
class Stopwatch:
    """How long waits have taken, added up, those that go on too."""

    running: int = 0
    seconds: float = 0.0
    """Less the time of the monotonic clock once for each that goes on."""

    def begin(self) -> None:
        """Count a wait that begins."""
        self.running += 1
        self.seconds -= time.monotonic()

    def end(self) -> None:
        """Count a wait that is over."""
        self.running -= 1
        self.seconds += time.monotonic()

    def ms(self) -> int:
        """Return how many milliseconds they have taken."""
        return int((self.seconds + self.running * time.monotonic()) * 1000)
