"""Figures of a throughput run, and the words of one that failed."""

from __future__ import annotations

import pytest

from tests.bench.loads import Flow, said


def test_rate_is_deliveries_per_second_and_cpu_is_nanoseconds_for_each() -> None:
    flow = Flow(deliveries=500_000, wall_ns=2_000_000_000, relay_cpu_ns=800_000_000)
    assert flow.rate == 250_000
    assert flow.cpu == 1600


@pytest.mark.parametrize(("words", "shown"), [("bench: connect: refused\n", "connect: refused"), ("", "it said nothing")])
def test_a_failure_is_told_once(words: str, shown: str) -> None:
    assert said(words) == shown
