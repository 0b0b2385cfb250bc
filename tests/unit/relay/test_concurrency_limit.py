"""What one party may have under way."""

from __future__ import annotations

from sbusd.relay.concurrency_limit import Allowance


def test_the_number_and_the_bytes_are_bounded_for_each_by_itself() -> None:
    allowance = Allowance(2, 100)
    assert allowance.problem("a", 100) == ""
    allowance.take("a", 90)
    assert allowance.problem("a", 10) == ""
    assert allowance.problem("a", 11) == "calls in progress hold 90 bytes and this one 11; the limit is 100 bytes"
    allowance.take("a", 10)
    assert allowance.problem("a", 0) == "2 calls are already in progress"
    assert allowance.problem("b", 100) == ""
    assert len(allowance) == 2


def test_what_is_over_counts_no_more() -> None:
    allowance = Allowance(1, 100)
    for _ in range(3):
        allowance.take("a", 100)
        assert allowance.problem("a", 0)
        allowance.give_back("a", 100)
        assert allowance.problem("a", 100) == ""
    assert len(allowance) == 0
