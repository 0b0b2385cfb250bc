"""Fairness in the model: who is served in a turn, and with how many packets. Rule 4 of sbusd/dataplane/contract.py, by an explicit clock.

The model knows the time that control packets take. It has no estimates of what patterns, recipients and bytes cost.
"""

from __future__ import annotations

from collections import Counter

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import Sight
from tests.oracle.connection import Clock, Connection
from tests.oracle.link import Ready

PENALTY = 4
"""A connection that has taken more than ``turn_time`` lets others go first for this many times as long."""

MAX_PENALTY = 0.1
MAX_USER_PENALTY = 1.0
TURN_SHARES = 4
"""Times ``turn_time``: after that a turn serves only users that it has not served yet."""

RECENT = 0.001
"""Seconds after which a user that was served is not about to come again."""


class Fairness:
    """Divides a turn among connections and users."""

    def __init__(self, limits: LimitSettings, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._turns = 0
        self._started = 0.0
        self._readable: Counter[int | str] = Counter()
        self._served: set[int] = set()
        self._users: dict[int, float] = {}
        """Until when each user lets others go first."""
        self._is_cut_short = False
        self._last: tuple[int | None, float] = (None, float("-inf"))
        """The user that was served last, and when."""
        self._other_at = float("-inf")
        """When another user than that was served last."""

    def begin_turn(self, ready: list[Ready], connections: dict[int, Connection]) -> list[Ready]:
        """Begin a turn, and return what is ready in the order of service: after a turn that was cut short it begins with another."""
        self._turns += 1
        self._started = self._clock.now
        self._served.clear()
        live = [connections[each.number] for each in ready if each.can_read and each.number in connections]
        self._readable = Counter(f"connection {each.number}" if each.uid is None else each.uid for each in live)
        first = self._turns % len(ready) if self._is_cut_short and ready else 0
        self._is_cut_short = False
        return ready[first:] + ready[:first]

    def share(self, connection: Connection) -> int:
        """Return how many packets of the connection are handled now: while others wait, a user's connections share a batch."""
        limit = min(connection.batch_limit, self._limits.batch_packets)
        uid = connection.uid
        if uid is None or uid not in self._readable or len(self._readable) < 2:
            return limit
        return max(1, min(limit, self._limits.batch_packets // self._readable[uid]))

    def gives_way(self, connection: Connection) -> bool:
        """Return whether other connections are served first."""
        until = max(connection.gives_way_until, 0.0 if connection.uid is None else self._users.get(connection.uid, 0.0))
        return until > self._clock.now

    def must_stop(self, connection: Connection) -> bool:
        """Return whether the turn has taken so long that a user that it has served is not served again."""
        if self._clock.now <= self._started + TURN_SHARES * self._limits.turn_time or connection.uid not in self._served:
            return False
        self._is_cut_short = True
        return True

    def is_held(self, connection: Connection) -> bool:
        """Return whether a connection that gives way is not served even alone: another user was served a moment ago."""
        if not connection.is_costly or connection.uid is None or not self.gives_way(connection):
            return False
        uid, at = self._last
        return self._clock.now - (self._other_at if uid == connection.uid else at) < RECENT

    def rotated(self, ready: list[Ready]) -> list[Ready]:
        """Return those that give way in the order in which they are served while nobody else is ready."""
        first = self._turns % len(ready)
        return ready[first:] + ready[:first]

    def is_time_over(self, since: float) -> bool:
        """Return whether more than ``turn_time`` has passed."""
        return self._clock.now > since + self._limits.turn_time

    def note_service(self, connection: Connection, packets: int, since: float, control_time: float) -> None:
        """Note that *packets* were handled from *since* on, of which control packets took *control_time* seconds."""
        turn_time, now = self._limits.turn_time, self._clock.now
        limit = self._limits.batch_packets
        connection.is_costly = control_time > turn_time
        if packets and connection.is_costly:
            limit = max(1, int(packets * turn_time / control_time))
        connection.batch_limit = min(limit, connection.batch_limit * 2, self._limits.batch_packets)
        if packets:
            self._note_user(connection.uid)
        taken = now - since
        connection.gives_way_until = now + min(taken * PENALTY, MAX_PENALTY) if taken > turn_time else 0.0
        if connection.is_costly and connection.sight < Sight.ALL and connection.uid is not None:
            until = now + min(control_time * PENALTY, MAX_USER_PENALTY)
            self._users[connection.uid] = max(self._users.get(connection.uid, 0.0), until)

    def _note_user(self, uid: int | None) -> None:
        """Note which user was served."""
        if uid is not None:
            self._served.add(uid)
        if uid != self._last[0]:
            self._other_at = self._last[1]
        self._last = (uid, self._clock.now)

    def forget(self, uid: int) -> None:
        """Forget a user with its last connection."""
        self._users.pop(uid, None)
