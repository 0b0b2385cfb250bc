from __future__ import annotations

import pytest

from tests.attacks.results import EXPLANATION, HEADINGS, AttackResult, Round, Stall, table
from tests.attacks.victim import Measure


def measure(steady: float = 5_000.0, full: float = 100_000.0, losses: int = 0) -> Measure:
    return Measure(1.0, steady, full, tuple(each / 1e6 for each in range(1, 101)), losses)


BRIEF = Stall(0.001, 0.001, "messages")


def result(
    attacked: Measure, *, memory: int = 1, stall: Stall | None = BRIEF, takes_a_share: bool = False, problem: str = ""
) -> AttackResult:
    return AttackResult("x", (Round(measure(), attacked, 7),), memory, 2, stall, takes_a_share, problem)


def test_an_attack_that_costs_nothing_holds() -> None:
    assert result(measure()).broken == ()
    assert result(measure()).cells()[-1] == "holds"


@pytest.mark.parametrize(
    ("attacked", "broken"),
    [
        (measure(steady=4_000.0), ()),
        (measure(steady=3_999.0), ("steady rate",)),
        (measure(full=80_000.0), ()),
        (measure(full=79_999.0), ("full speed",)),
        (measure(losses=1), ("losses",)),
        (measure(steady=1.0, full=1.0, losses=2), ("losses", "steady rate", "full speed")),
    ],
)
def test_each_bound_is_judged(attacked: Measure, broken: tuple[str, ...]) -> None:
    assert result(attacked).broken == broken


def test_a_victim_must_keep_its_share_of_a_busy_bus() -> None:
    assert result(measure(full=40_000.0), takes_a_share=True).broken == ()
    assert result(measure(full=39_999.0), takes_a_share=True).broken == ("full speed",)
    assert result(measure(steady=3_999.0), takes_a_share=True).broken == ("steady rate",)


def test_memory_is_judged_by_its_cap() -> None:
    assert result(measure(), memory=2).broken == ()
    assert result(measure(), memory=3).broken == ("memory",)


@pytest.mark.parametrize(
    ("stall", "broken"),
    [(Stall(0.005, 0.0, "x"), ()), (Stall(0.0051, 0.0, "x"), ("stall",)), (None, ("stall",))],
)
def test_a_stall_is_compared_with_the_time_allowed_for_the_loop(stall: Stall | None, broken: tuple[str, ...]) -> None:
    assert result(measure(), stall=stall).broken == broken


def test_a_stall_is_shown_with_its_cause() -> None:
    assert result(measure(), stall=Stall(7.504, 0.0, "messages")).cells()[-3:-1] == ("7,504.0", "messages")
    assert result(measure(), stall=None).cells()[-3:-1] == ("?", "?")


def test_an_attack_that_was_stopped_is_a_problem_whatever_was_measured() -> None:
    assert result(measure(), problem="gone").broken == ("gone",)
    early = AttackResult("x", (), 1, 2, None, False, "gone")
    assert early.broken == ("gone",)
    assert len(early.cells()) == len(HEADINGS)
    assert early.cells()[-1] == "NO: gone"


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    rounds = tuple(Round(measure(), measure(steady=each), 0) for each in (1_000.0, 4_500.0, 5_000.0))
    assert AttackResult("x", rounds, 1, 2, BRIEF, False).steady_kept == pytest.approx(0.9)


def test_percentiles_are_of_the_round_trips() -> None:
    assert measure().p50 == pytest.approx(50.5e-6)
    assert measure().p99 == pytest.approx(99.01e-6)
    assert Measure(1.0, 1.0, 1.0, (3.0,), 0).p99 == 3.0


def test_the_table_explains_itself_and_has_a_line_for_each_attack() -> None:
    text = table([result(measure()), result(measure(losses=1))])
    assert text.startswith(EXPLANATION)
    assert text.splitlines()[-2].endswith("holds")
    assert text.splitlines()[-1].endswith("NO: losses")
