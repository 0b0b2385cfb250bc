"""The user who only wants to work: one speaker, one listener, every message numbered, every one awaited, every time measured.

Two loads. *Steady*: a fixed rate, of which the first message of each tick is timed from send to receipt; it needs less than
its share of the bus, so an attack must not reduce it. *Full speed*: windows of messages, the next when the last has been received;
it takes all that the bus can give, so an attacker who also takes all leaves it its share and no more.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from statistics import quantiles

from tests.support.daemons import Daemon
from tests.support.users import User
from tests.support.wire import message

KEY = b"victim/work"
TICK_SECONDS = 0.002
TICK_MESSAGES = 10
WINDOW_MESSAGES = 32
PAYLOAD = bytes(56)


@dataclass(frozen=True, slots=True)
class Measure:
    """What the victim got: seconds are wall clock, rates messages per second."""

    seconds: float
    steady_rate: float
    full_rate: float
    round_trips: tuple[float, ...]
    """Seconds, of single messages under the steady load."""
    losses: int

    @property
    def p50(self) -> float:
        """Median round trip, seconds."""
        return _percentile(self.round_trips, 50)

    @property
    def p99(self) -> float:
        """The round trip that one in a hundred exceeds, seconds."""
        return _percentile(self.round_trips, 99)


def _percentile(values: tuple[float, ...], percent: int) -> float:
    """Return a percentile of *values*, of which there must be one at least."""
    return values[0] if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


class Victim:
    """Two connections of a user."""

    def __init__(self, bus: Daemon, user: User) -> None:
        self._speaker = bus.client(user)
        self._listener = bus.client(user)
        self._listener.subscribe(KEY)
        self._listener.barrier()
        self._numbers = itertools.count()
        self._losses = 0

    def close(self) -> None:
        """Close both connections."""
        self._speaker.close()
        self._listener.close()

    def measure(self, seconds: float) -> Measure:
        """Work for *seconds*: half of it steadily, half at full speed."""
        self._losses = 0
        begin = time.perf_counter()
        steady_rate, round_trips = self._work_steadily(seconds / 2)
        full_rate = self._work_at_full_speed(seconds / 2)
        return Measure(time.perf_counter() - begin, steady_rate, full_rate, round_trips, self._losses)

    def _work_steadily(self, seconds: float) -> tuple[float, tuple[float, ...]]:
        """Send a few messages each tick; return the rate that was kept, and the round trips of the first of each tick."""
        ticks = max(1, int(seconds / TICK_SECONDS))
        begin = time.perf_counter()
        trips = []
        done = 0
        for tick in range(ticks):
            ahead = begin + tick * TICK_SECONDS - time.perf_counter()
            if ahead > 0:
                time.sleep(ahead)
            elif -ahead > seconds:  # twice as long as planned: what was not done counts as not kept
                break
            trips.append(self._exchange(1))
            self._exchange(TICK_MESSAGES - 1)
            done += TICK_MESSAGES
        return done / max(time.perf_counter() - begin, ticks * TICK_SECONDS), tuple(trips)

    def _work_at_full_speed(self, seconds: float) -> float:
        """Exchange windows one after the other; return the rate."""
        begin = now = time.perf_counter()
        done = 0
        while now - begin < seconds or not done:
            self._exchange(WINDOW_MESSAGES)
            done += WINDOW_MESSAGES
            now = time.perf_counter()
        return done / (now - begin)

    def _exchange(self, number: int) -> float:
        """Send *number* messages and receive them all; return how long that took."""
        expected = [message(KEY, b"%d " % next(self._numbers) + PAYLOAD) for _ in range(number)]
        begin = time.perf_counter()
        for packet in expected:
            self._speaker.send(packet)
        for packet in expected:
            received = self._listener.receive()
            while received != packet:
                # Show any other packet in full: a loss, an error, a message of another publisher, the end of the connection.
                self._losses += 1
                assert received, "the victim was disconnected"
                assert self._losses < 1_000, f"the victim gets other things than its own messages, such as {received[:80]!r}"
                received = self._listener.receive()
        return time.perf_counter() - begin
