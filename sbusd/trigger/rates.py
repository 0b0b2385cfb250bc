"""Limits of each rule for each user: bursts, and loops of a unit that causes the message that starts it."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque

from sbusd.config.trigger import Rate

MAX_USERS = 1_024
"""Users whose times are kept for a rule. The least recent one is forgotten; the limit of all users together still holds."""

ALL_USERS = 10
"""The burst of all users together, in multiples of that of one: a user can have many ids, user_namespaces(7)."""


class Verdict(enum.Enum):
    """What the limits say about one message; the value is the name of its counter."""

    ALLOWED = "accepted"
    BURST = "over_burst"
    LOOP = "loop"
    """The first message over the limit for loops: the rule is suspended for its user from now on."""
    SUSPENDED = "suspended"


class _Window:
    """The times of the last actions within an interval."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def is_full(self, count: int, interval: float, now: float) -> bool:
        """Return whether *count* actions are within *interval* before *now*."""
        while self._times and self._times[0] <= now - interval:
            self._times.popleft()
        return len(self._times) >= count

    def add(self, now: float) -> None:
        """Note an action."""
        self._times.append(now)


class _User:
    """The actions for one user."""

    def __init__(self) -> None:
        self.burst = _Window()
        self.loop = _Window()
        self.suspended_until = 0.0


class Limits:
    """The limits of one rule."""

    def __init__(self, burst: Rate, loop: Rate) -> None:
        self._burst = burst
        self._loop = loop
        self._users: OrderedDict[int, _User] = OrderedDict()
        self._all = _Window()

    def suspended(self, now: float) -> int:
        """Return the number of users for whom the rule is suspended."""
        return sum(user.suspended_until > now for user in self._users.values())

    def judge(self, uid: int, now: float) -> Verdict:
        """Return whether a message of *uid* at *now*, in seconds, may cause an action, and count it if so."""
        user = self._users.setdefault(uid, _User())
        self._users.move_to_end(uid)
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)
        if now < user.suspended_until:
            return Verdict.SUSPENDED
        burst, loop = self._burst, self._loop
        if user.burst.is_full(burst.count, burst.interval, now) or self._all.is_full(ALL_USERS * burst.count, burst.interval, now):
            return Verdict.BURST
        if user.loop.is_full(loop.count, loop.interval, now):
            user.suspended_until = now + loop.interval
            return Verdict.LOOP
        for window in (user.burst, user.loop, self._all):
            window.add(now)
        return Verdict.ALLOWED
