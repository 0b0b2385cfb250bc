"""The compiled switch beside the model on a clock that the test sets: fairness, pacing and the timeouts of blocked publishers.

``python -m tests.oracle.timed_life``, with the library of clock.c in LD_PRELOAD. Time passes in sixteenths of a second, which both
represent exactly; no bound is a multiple of that, so that no decision depends on rounding.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from sbusd.dataplane.contract import MakeSwitch
from tests.oracle.kernel import SocketModel
from tests.property.test_switches import LIMITS, SwitchAndModel
from tests.support.world import World

TICK = 1 / 16
START = 1_000.0
"""Not 0: the compiled switch takes a connection of which it knows nothing for one that was served then."""

MOST_TICKS = 1_000
"""When a bus goes in circles."""

TIMED = replace(LIMITS, turn_time=0.051, block_timeout=2.03, progress_timeout=0.77, pace_limit=0.21, batch_packets=8)
COST = b"CMSG cost/"
"""A control packet that takes as many ticks as the number behind it says."""


class TimedWorld(World):
    """A bus whose control packets take time."""

    advance: Callable[[float], None]

    def control(self, connection: int, packet: bytes) -> None:
        super().control(connection, packet)
        if packet.startswith(COST) and packet[len(COST) :].isdigit():
            self.advance(int(packet[len(COST) :]) * TICK)


class Timed(SwitchAndModel):
    """The same random packets, and time that passes."""

    def make_worlds(self) -> tuple[World, World]:
        set_clock = ctypes.CDLL(os.environ["LD_PRELOAD"].rpartition(":")[2]).clock_set
        set_clock.argtypes = [ctypes.c_longlong]
        self.now = START

        def advance(seconds: float) -> None:
            self.now += seconds
            set_clock(int(self.now * 1_000_000_000))

        advance(0.0)
        compiled, modelled = TimedWorld(TIMED), TimedWorld(TIMED, make_switch=cast(MakeSwitch, SocketModel))
        compiled.advance = advance
        clock = cast(SocketModel, modelled.switch).clock
        clock.now = START

        def advance_model(seconds: float) -> None:
            clock.now += seconds

        modelled.advance = advance_model
        return compiled, modelled

    def settle(self) -> None:
        """Let both work until nothing is ready, turn by turn. A connection that lets others go first needs time to pass."""
        for _ in range(MOST_TICKS):
            counts = [world.switch.turn(0) for world in self.worlds]
            assert self.now == self.model.clock.now, "each has handled the same costly packets in its turn"
            if not any(counts):
                return
            self.pass_time(1)
        raise AssertionError("the bus does not come to rest")

    def pass_time(self, ticks: int) -> None:
        """Let the same time pass in both."""
        for world in self.worlds:
            cast(TimedWorld, world).advance(ticks * TICK)

    @rule(ticks=st.integers(1, 40))
    def wait(self, ticks: int) -> None:
        self.pass_time(ticks)
        self.settle()

    @rule(
        sent=st.lists(
            st.tuples(
                st.integers(0, 5),
                st.lists(st.sampled_from([COST + b"1", COST + b"3", b"MSG a\0", b"CMSG ping"]), min_size=1, max_size=12),
                st.booleans(),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def send_costly_packets(self, sent: list[tuple[int, list[bytes], bool]]) -> None:
        """Several connections send before anything is handled, so that they compete."""
        numbers = list(self.compiled.clients)
        for place, packets, is_batch in sent:
            if numbers:
                self.send_all(numbers[place % len(numbers)], packets, is_batch=is_batch)
        self.settle()

    def hand_over(self) -> None:
        """Not here: a switch that takes over counts what a publisher has waited as if it had been just now."""

    def hand_over_within_a_batch(self) -> None:
        """Not here either."""


def main() -> None:
    """Run the state machine."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Timed, settings=settings(max_examples=40, stateful_step_count=25, deadline=None, database=None, suppress_health_check=checks)
    )


if __name__ == "__main__":
    main()
