"""Limits of each rule for each user: bursts, and loops of a unit that causes the message that starts it."""

from __future__ import annotations

import enum
from collections import OrderedDict, deque

from sbusd.config.trigger import Rate

MAX_USERS = 1_024
"""Users whose times are kept for a rule. The least recent one is forgotten; the limit of all users together still holds."""

ALL_USERS = 10
"""The burst of all users together, in multiples of that of one."""

FIRST_ACTIONS = 5
"""The part of it that is kept for users with no action in the interval, in the same unit: no few users can use up the burst of all."""


class RateDecision(enum.Enum):
    """What the limits say about one message; the value is the name of its counter."""

    ALLOWED = "accepted"
    BURST = "over_burst"
    ALL_BURST = "over_burst_of_all"
    """The user is within the limit, and all users together are not."""
    LOOP = "loop"
    """The first message over the limit for loops: the rule is suspended for its user from now on."""
    SUSPENDED = "suspended"


class _Window:
    """The times of the last actions within an interval."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def count(self, interval: float, now: float) -> int:
        """Return the number of actions within *interval* before *now*, and forget the others."""
        while self._times and self._times[0] <= now - interval:
            self._times.popleft()
        return len(self._times)

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

    def judge(self, charged: int, now: float) -> RateDecision:
        """Return whether a message of the user *charged* at *now*, in seconds, may cause an action, and count it if so."""
        user = self._users.setdefault(charged, _User())
        self._users.move_to_end(charged)
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)
        if now < user.suspended_until:
            return RateDecision.SUSPENDED
        burst, loop = self._burst, self._loop
        own = user.burst.count(burst.interval, now)
        if own >= burst.count:
            return RateDecision.BURST
        if self._all.count(burst.interval, now) >= burst.count * (ALL_USERS - FIRST_ACTIONS if own else ALL_USERS):
            return RateDecision.ALL_BURST
        if user.loop.count(loop.interval, now) >= loop.count:
            user.suspended_until = now + loop.interval
            return RateDecision.LOOP
        for window in (user.burst, user.loop, self._all):
            window.add(now)
        return RateDecision.ALLOWED
