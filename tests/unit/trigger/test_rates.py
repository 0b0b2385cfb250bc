"""Limits of bursts and loops, for each user."""

from __future__ import annotations

from sbusd.trigger.rates import ALL_USERS, FIRST_ACTIONS, MAX_USERS, Limits, RateDecision
from tests.unit.trigger.rules import ALICE, BOB, rate


def verdicts(limits: Limits, uid: int, *times: float) -> list[str]:
    """Return what the limits say about messages at *times*."""
    return [limits.judge(uid, each).name for each in times]


def test_a_burst_is_over_when_its_interval_is() -> None:
    limits = Limits(rate(2, 10.0), rate(100, 100.0))
    assert verdicts(limits, ALICE, 0, 1, 2, 9.9, 10, 11, 12) == ["ALLOWED", "ALLOWED", "BURST", "BURST", "ALLOWED", "ALLOWED", "BURST"]
    assert verdicts(limits, BOB, 12) == ["ALLOWED"]


def test_a_loop_suspends_the_rule_for_its_user_alone_and_for_a_time() -> None:
    limits = Limits(rate(1, 1.0), rate(3, 10.0))
    assert verdicts(limits, ALICE, 0, 1, 2, 3, 4, 12.9) == ["ALLOWED", "ALLOWED", "ALLOWED", "LOOP", "SUSPENDED", "SUSPENDED"]
    assert (limits.suspended(4), limits.suspended(13)) == (1, 0)
    assert verdicts(limits, BOB, 4) == ["ALLOWED"]
    assert verdicts(limits, ALICE, 13.5) == ["ALLOWED"]


def test_all_users_together_are_bounded() -> None:
    limits = Limits(rate(1, 1000.0), rate(100, 1000.0))
    found = [limits.judge(uid, 0.0) for uid in range(3 * MAX_USERS)]
    assert found == [RateDecision.ALLOWED] * ALL_USERS + [RateDecision.ALL_BURST] * (len(found) - ALL_USERS)


def test_users_with_a_full_burst_leave_actions_for_those_with_none() -> None:
    limits = Limits(rate(3, 10.0), rate(100, 100.0))
    used = [verdicts(limits, uid, 0, 0, 0, 0) for uid in range(100, 100 + ALL_USERS - FIRST_ACTIONS)]
    assert used == [["ALLOWED", "ALLOWED", "ALLOWED", "BURST"]] * len(used)
    assert verdicts(limits, ALICE, 1, 1, 1) == ["ALLOWED", "ALL_BURST", "ALL_BURST"]
    assert verdicts(limits, BOB, 1) == ["ALLOWED"]
    assert verdicts(limits, ALICE, 10, 11.5, 12, 12) == ["ALLOWED", "ALLOWED", "ALLOWED", "BURST"]
