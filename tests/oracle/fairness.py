"""The model of fairness: how connections and users share the time of the event loop. Rule 4 of sbusd/dataplane/contract.py.

Nothing here reads a clock. All times are in nanoseconds, and the caller passes them. A user is None if the bus does not know it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

SECOND = 1_000_000_000
MILLISECOND = 1_000_000

PENALTY = 4
"""A connection that has taken more than ``turn_time`` is throttled for this many times as long."""

MAX_PENALTY = 100 * MILLISECOND
MAX_USER_PENALTY = SECOND
TURN_SHARES = 4
"""Times ``turn_time``: after that a turn serves only users that it has not served yet."""

ROUTING_TURNS = 10
"""Times ``turn_time``: after that, by the estimate for routing, the rest of a batch waits for the next turn."""

RECENT = MILLISECOND
"""A user that was served so recently will soon be back."""

LONG_AGO = -SECOND


@dataclass(slots=True)
class ConnectionTime:
    """What one connection has taken."""

    batch_limit: int
    throttled_until: int = LONG_AGO
    is_costly: bool = False


class Schedule:
    """Decides who is served in a turn, and with how many packets. It has the methods of ``sbusd.dataplane.switch.ScheduleModel``."""

    def __init__(self, *, turn_time: int, batch_packets: int) -> None:
        self._turn_time = turn_time
        self._batch_packets = batch_packets
        self._now = 0
        self._connections: dict[int, ConnectionTime] = {}
        self._throttled: dict[int, int] = {}
        """Until when each user is throttled."""
        self._owes: dict[int, tuple[int, int]] = {}
        """The own costs of each user that still count, four times, and at which time that was the sum."""
        self._readable: Counter[int] = Counter()
        """Connections of each user that can be read in this turn."""
        self._unknown = 0
        """Such connections without a user."""
        self._served: set[int] = set()
        """Users that were served in this turn."""
        self._services: tuple[int | None, int] = (None, LONG_AGO)
        """The user that was served last, and when."""
        self._other_at = LONG_AGO
        """When another user than that one was served."""

    # -- connections and users

    def connect(self, connection: int) -> None:
        """Begin with a new connection."""
        self._connections[connection] = ConnectionTime(self._batch_packets)

    def leave(self, user: int) -> None:
        """End the last connection of a user. What it has taken counts if it comes again."""
        self._readable.pop(user, None)
        self._served.discard(user)

    # -- turns

    def begin_turn(self, now: int, *, readable: tuple[int | None, ...] = ()) -> None:
        """Begin a turn. *readable* has the user of each connection that can be read."""
        self._now = now
        self._served.clear()
        self._readable = Counter(user for user in readable if user is not None)
        self._unknown = readable.count(None)

    def turn_end(self) -> int:
        """Return when this turn, which begins now, stops serving users for a second time."""
        return self._now + TURN_SHARES * self._turn_time

    def must_stop(self, user: int | None, end: int) -> bool:
        """Return whether a turn that should have ended at *end* has served the user already."""
        return self._now > end and user in self._served

    def is_throttled(self, connection: int, user: int | None) -> bool:
        """Return whether other connections, or other users, go first."""
        by_user = LONG_AGO if user is None else self._throttled.get(user, LONG_AGO)
        return max(self._connections[connection].throttled_until, by_user) > self._now

    def is_held_back(self, connection: int, user: int | None) -> bool:
        """Return whether a throttled connection is not served even alone: its user is throttled or its packets are costly, and another user
        was served just now."""
        if user is None:
            return False
        time = self._connections[connection]
        if self._throttled.get(user, LONG_AGO) <= self._now and (not time.is_costly or time.throttled_until <= self._now):
            return False
        last, at = self._services
        return self._now - (self._other_at if user == last else at) < RECENT

    # -- batches

    def read_limit(self, connection: int, user: int | None) -> int:
        """Return how many packets are read: while several users can be read, the connections of one share a batch."""
        limit = self._connections[connection].batch_limit
        if user is None or user not in self._readable or len(self._readable) + self._unknown < 2:
            return limit
        return max(1, min(limit, self._batch_packets // self._readable[user]))

    def is_too_long(self, routing: int) -> bool:
        """Return whether the rest of a batch waits, because routing has taken so long, as estimated."""
        return routing > ROUTING_TURNS * self._turn_time

    def serve(
        self,
        connection: int,
        user: int | None,
        *,
        now: int,
        count: int = 1,
        patterns: int = 0,
        own: int = 0,
        routing: int = 0,
        is_cut_off: bool = False,
        is_owner: bool = False,
    ) -> None:
        """Account for a batch of *count* packets that ends *now*.

        *patterns*, *own* and *routing*: the estimates for visiting patterns, for the packets' bytes with the time in the control plane,
        and for routing. *is_cut_off*: the rest of the batch waits. *is_owner*: the user owns the bus.
        """
        time, taken = self._connections[connection], now - self._now
        self._now = now
        cost = patterns + own
        time.is_costly = cost > self._turn_time
        limit = self._batch_packets
        if count and time.is_costly:
            limit = max(1, count * self._turn_time // cost)
        if is_cut_off and self.is_too_long(routing):
            limit = max(1, min(limit, count))
        time.batch_limit = min(limit, time.batch_limit * 2, self._batch_packets)
        if count:
            self._note_served(user)
        time.throttled_until = now + min(taken * PENALTY, MAX_PENALTY) if taken > self._turn_time else LONG_AGO
        if not is_owner and user is not None:
            self._charge(user, min(own, taken))

    def pass_time(self, now: int) -> None:
        """Let it be *now*."""
        self._now = now

    def _charge(self, user: int, own: int) -> None:
        """Add to what a user has taken for itself, and throttle it for more than a turn. In all other time it is paid off, at a quarter of
        the speed."""
        owed, at = self._owes.pop(user, (0, LONG_AGO))
        owed = max(0, owed - (self._now - own - at)) + own * PENALTY
        if owed <= self._turn_time * PENALTY:
            self._owes[user] = owed, self._now
        else:
            self._throttled[user] = max(self._throttled.get(user, LONG_AGO), self._now + min(owed, MAX_USER_PENALTY))

    def _note_served(self, user: int | None) -> None:
        """Note which user was served."""
        last, at = self._services
        if user is not None:
            self._served.add(user)
        if user != last:
            self._other_at = at
        self._services = user, self._now
