"""How often something may happen."""

from __future__ import annotations


class Rate:
    """A token bucket: *rate* in a second, and *burst* at once. Times are in seconds of a clock that never goes back."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._filled = 0.0

    def has(self, now: float, count: int = 1) -> bool:
        """Return whether *count* of the rate can be used at *now*."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._rate)
        self._filled = now
        return self._tokens >= count

    def take(self, now: float, count: int = 1) -> bool:
        """Use *count* of the rate, and return whether there was enough; otherwise use none."""
        is_enough = self.has(now, count)
        if is_enough:
            self._tokens -= count
        return is_enough


class SharedRate:
    """A rate that users share: *rate* in a second, and as much at once. Times are as those of `Rate`.

    For a user alone it is a token bucket. Each user has a level: what it has used, less its part of the rate since. A user is within the
    rate while the sum of all levels is, or while its own level is within its part. So a user who begins can use a part at once, although
    others have used the whole rate just before; these have less for it then.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._levels: dict[int, float] = {}
        """The levels that are not 0."""
        self._sum = 0.0
        self._drained = 0.0

    def take(self, user: int, now: float) -> bool:
        """Use one of the rate for *user* at *now*, and return whether it could; otherwise use none."""
        if now > self._drained:
            self._drain((now - self._drained) * self._rate)
            self._drained = now
        level = self._levels.get(user, 0.0)
        users = len(self._levels) + (not level)
        if level and self._sum + 1 > self._rate and level + 1 > self._rate / users:
            return False
        self._levels[user] = level + 1
        self._sum += 1
        return True

    def _drain(self, amount: float) -> None:
        """Reduce the levels by *amount* in all, each by the same unless it is 0 before."""
        left = len(self._levels)
        for user, level in sorted(self._levels.items(), key=lambda each: each[1]):
            used = min(level, amount / left)
            amount -= used
            left -= 1
            if used == level:
                del self._levels[user]
            else:
                self._levels[user] = level - used
        self._sum = sum(self._levels.values())
