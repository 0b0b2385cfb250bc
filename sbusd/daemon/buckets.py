"""Token buckets: how often something may happen on average, and how often at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Bucket:
    """Holds at most ``burst`` tokens, gains ``rate`` a second, and loses one for each thing that happens. Has no clock.

    ``tokens`` is what it held at the time ``since``, in seconds of a clock that never goes back.
    """

    rate: float
    burst: float
    tokens: float
    since: float

    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> Bucket:
        """Return a bucket that holds all it can."""
        return cls(rate, burst, burst, now)

    def take(self, now: float) -> bool:
        """Take a token and return True, or return False if there is none."""
        self.settle(now)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    def settle(self, now: float) -> None:
        """Add what has come until *now*; a time before the last one adds nothing."""
        if now > self.since:
            tokens = self.tokens + (now - self.since) * self.rate
            self.tokens = tokens if tokens < self.burst else self.burst
            self.since = now

    def resize(self, rate: float, burst: float, now: float) -> None:
        """Have another rate and burst from *now* on. What has been used of the burst stays used."""
        self.settle(now)
        used = self.burst - self.tokens
        self.rate, self.burst, self.tokens = rate, burst, max(0.0, burst - used)

    def full_at(self) -> float:
        """Return when it will hold all it can, if nothing is taken."""
        return self.since + (self.burst - self.tokens) / self.rate
