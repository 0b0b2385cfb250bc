"""How often something may happen."""

from __future__ import annotations


class Rate:
    """A token bucket: *rate* in a second, and *burst* at once. Times are in seconds of a clock that never goes back."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = 0.0

    def take(self, now: float, count: int = 1) -> bool:
        """Use *count* of the rate, and return whether there was enough; otherwise use none."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < count:
            return False
        self._tokens -= count
        return True
