"""Figures of a throughput run, and the words of one that failed."""

from __future__ import annotations

import pytest

from tests.bench.loads import Churn, Flow, failure_text


def test_rate_is_deliveries_per_second_and_cpu_is_nanoseconds_for_each() -> None:
    flow = Flow(deliveries=500_000, wall_ns=2_000_000_000, relay_cpu_ns=800_000_000)
    assert flow.rate == 250_000
    assert flow.cpu == 1600


def test_a_churn_run_counts_clients_per_second_and_nanoseconds_for_each() -> None:
    churn = Churn(clients=4_000, wall_ns=500_000_000, relay_cpu_ns=400_000_000)
    assert churn.rate == 8_000
    assert churn.cpu == 100_000


@pytest.mark.parametrize(("words", "shown"), [("bench: connect: refused\n", "connect: refused"), ("", "it said nothing")])
def test_a_failure_is_reported_once(words: str, shown: str) -> None:
    assert failure_text(words) == shown
