"""Fairness, pacing and the timeouts of blocked publishers: the compiled switch and the model on a clock that the test sets.

``python -m tests.property.test_switch_in_time`` with the library of tests/oracle/clock.c in LD_PRELOAD is the comparison; the test runs
that. Nothing sleeps, and the number of turns is bounded.

Time passes in whole milliseconds, which both clocks of the switch represent. No cost is a multiple of ``turn_time`` for any number of
packets, so that the estimates for bytes and patterns, which the model does not have, decide nothing.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.oracle.fairness import MILLISECOND, SECOND
from tests.oracle.kernel import SocketModel
from tests.property.test_switches import LIMITS, SwitchAndModel
from tests.support.examples import examples
from tests.support.malformed_batches import batch_of
from tests.support.switch_harness import MakeSwitch, SwitchHarness
from tools.stage import ROOT

pytestmark = pytest.mark.slow

SOURCE = ROOT / "tests" / "oracle" / "clock.c"
EXAMPLES = examples(150)
END_SECONDS = 900
"""When it hangs, whatever the machine does. It takes half a minute of processor time."""

TURNS_AT_REST = 20
"""Turns at one moment; then each takes a millisecond at least, because a connection may be held back until time passes."""

MOST_TURNS = 5_000
"""Turns after which the switch must have come to rest."""

TIMED = replace(LIMITS, turn_time=0.0513, block_timeout=2.0, progress_timeout=0.8, pace_limit=0.2, batch_packets=8)
COST = b"CMSG cost/"
"""A control packet that takes as many milliseconds as the number behind it says."""

SENT = st.sampled_from([COST + b"1", COST + b"7", COST + b"20", COST + b"60", COST + b"300", b"MSG a\0", b"MSG a\0", b"CMSG ping"])


class TimedWorld(SwitchHarness):
    """A bus whose control packets take time, and whose turns the test takes."""

    advance: Callable[[int], None]

    def control(self, connection: int, packet: bytes) -> None:
        super().control(connection, packet)
        if packet.startswith(COST) and packet[len(COST) :].isdigit():
            self.advance(int(packet[len(COST) :]) * MILLISECOND)

    def run(self) -> None:
        pass


class Timed(SwitchAndModel):
    """The same random packets, and time that passes."""

    now: ClassVar[int] = 1_000 * SECOND
    """The time of the compiled switch. It is Hypothesis's clock too, so it never goes back."""

    def make_harnesses(self) -> tuple[SwitchHarness, SwitchHarness]:
        self.set_clock = ctypes.CDLL(os.environ["LD_PRELOAD"].rpartition(":")[2]).clock_set
        self.set_clock.argtypes = [ctypes.c_longlong]
        self.step = 0
        self.advance(-Timed.now % SECOND)  # so that an example that is repeated sees the same
        compiled, modelled = TimedWorld(TIMED), TimedWorld(TIMED, make_switch=cast(MakeSwitch, SocketModel))
        clock = cast(SocketModel, modelled.switch).clock
        clock.now = Timed.now

        def advance_model(time: int) -> None:
            clock.now += time

        compiled.advance, modelled.advance = self.advance, advance_model
        return compiled, modelled

    def advance(self, time: int) -> None:
        """Let time pass for the compiled switch."""
        Timed.now += time
        self.set_clock(Timed.now)

    def pass_time(self, time: int) -> None:
        """Let the same time pass for both."""
        for harness in self.harnesses:
            cast(TimedWorld, harness).advance(time)

    def settle(self) -> None:
        """Let both work until nothing is ready, turn by turn."""
        for turn in range(MOST_TURNS):
            counts = [harness.switch.turn(0) for harness in self.harnesses]
            assert self.model.clock.now == Timed.now, "each has handled the same costly packets in its turn"
            if not any(counts):
                return
            self.pass_time(max(self.step, MILLISECOND if turn > TURNS_AT_REST else 0))
        raise AssertionError("the switch does not come to rest")

    @rule(step=st.sampled_from([0, 0, 1, 10, 70]))
    def choose_step(self, step: int) -> None:
        self.step = step * MILLISECOND

    @rule(pause=st.sampled_from([1, 30, 62, 100, 200, 500, 800, 801, 1_000, 2_001]))
    def wait(self, pause: int) -> None:
        self.pass_time(pause * MILLISECOND)
        self.settle()

    @rule(client=SwitchAndModel.clients, recipient=SwitchAndModel.clients, pause=st.sampled_from([30, 62, 100, 250]))
    def pace(self, client: int, recipient: int, pause: int) -> None:
        """Let a recipient fall behind a paced publisher, which waits for a part of each second."""
        for _ in range(4):
            self.flood(client, recipient, b"blocking/soft/queue", b"pace/on", 15)
            self.wait(pause)
            self.read(recipient, 40)

    @rule(sent=st.lists(st.tuples(st.integers(0, 5), st.lists(SENT, min_size=1, max_size=12), st.booleans()), min_size=1, max_size=5))
    def compete(self, sent: list[tuple[int, list[bytes], bool]]) -> None:
        """Several connections send before anything is handled."""
        numbers = list(self.compiled.clients)
        for place, packets, is_batch in sent:
            for packet in [batch_of(packets)] if is_batch else packets:
                if numbers:
                    self.both(numbers[place % len(numbers)], packet, settles=False)
        self.settle()

    def hand_over(self) -> None:
        """Not here: a switch that takes over counts what a publisher has waited as if it had been just now."""

    def hand_over_within_a_batch(self) -> None:
        """Not here either."""


@pytest.mark.timeout(END_SECONDS + 60)
def test_the_switch_and_the_model_agree_as_time_passes(tmp_path: Path) -> None:
    library = tmp_path / "clock.so"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    # Behind what is there already: a sanitizer wants to be first.
    preloaded = [name for name in (os.environ.get("LD_PRELOAD"), str(library)) if name]
    env = os.environ | {"LD_PRELOAD": ":".join(preloaded)}
    comparison = [sys.executable, "-m", "tests.property.test_switch_in_time"]
    done = subprocess.run(comparison, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=END_SECONDS)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]


if __name__ == "__main__":
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Timed,
        settings=settings(max_examples=EXAMPLES, stateful_step_count=40, database=None, suppress_health_check=checks),
    )
