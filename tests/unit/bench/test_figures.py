"""The bench's arithmetic: paired ratios, medians, verdicts, and the table."""

from __future__ import annotations

import pytest

from tests.bench.figures import HEADINGS, Bound, Line, Unit, table

AT_LEAST = Bound(0.9, at_least=True)
AT_MOST = Bound(1.25)


def test_ratios_are_paired_round_by_round_and_not_of_the_medians() -> None:
    line = Line("rate", Unit.PER_SECOND, (10.0, 200.0, 30.0), AT_LEAST, (20.0, 100.0, 60.0))
    assert line.ratios == (0.5, 2.0, 0.5)
    assert line.judged == 0.5


def test_without_references_the_median_of_the_values_is_judged() -> None:
    line = Line("start", Unit.MILLISECONDS, (140e6, 900e6, 120e6), Bound(150e6))
    assert line.judged == 140e6
    assert line.holds


@pytest.mark.parametrize(
    ("bound", "judged", "holds"),
    [
        (AT_LEAST, 0.9, True),
        (AT_LEAST, 0.899, False),
        (AT_LEAST, 7.0, True),
        (AT_MOST, 1.25, True),
        (AT_MOST, 1.251, False),
        (AT_MOST, 0.1, True),
    ],
)
def test_a_bound_holds_up_to_its_limit(bound: Bound, judged: float, holds: bool) -> None:
    assert bound.holds(judged) is holds


@pytest.mark.parametrize(("values", "references"), [((), ()), ((1.0,), (1.0, 2.0)), ((1.0, 2.0), (1.0,))])
def test_rounds_that_cannot_be_paired_are_refused(values: tuple[float, ...], references: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        Line("x", Unit.BYTES, values, AT_MOST, references)


@pytest.mark.parametrize(
    ("unit", "figure", "written"),
    [
        (Unit.PER_SECOND, 392_000.0, "392 k/s"),
        (Unit.PER_SECOND, 6_700_000.0, "6,700 k/s"),
        (Unit.NANOSECONDS, 1600.4, "1,600 ns"),
        (Unit.MICROSECONDS, 63_120.0, "63.1 µs"),
        (Unit.MILLISECONDS, 150e6, "150 ms"),
        (Unit.BYTES, 4096.0, "4,096 B"),
        (Unit.MEBIBYTES, float(32 << 20), "32 MiB"),
    ],
)
def test_figures_are_written_in_their_unit(unit: Unit, figure: float, written: str) -> None:
    assert unit.write(figure) == written


def test_a_line_shows_its_medians_ratio_spread_bound_and_verdict() -> None:
    line = Line("rate", Unit.PER_SECOND, (80e3, 100e3), AT_LEAST, (100e3, 100e3))
    assert line.cells() == ("rate", "90 k/s", "100 k/s", "0.90", "0.80 to 1.00", "≥ 0.9", "yes")


def test_a_line_that_does_not_hold_is_seen_at_once() -> None:
    assert Line("memory", Unit.BYTES, (5000.0,), Bound(4096)).cells() == ("memory", "5,000 B", "", "", "", "≤ 4,096 B", "NO")


def test_the_table_has_straight_columns_and_a_row_for_each_line() -> None:
    lines = [Line("a", Unit.BYTES, (1.0,), Bound(2)), Line("a longer name", Unit.BYTES, (1000.0,), Bound(2000))]
    head, *rows = table(lines).splitlines()
    assert head.split() == " ".join(HEADINGS).split()
    assert [len(row) for row in rows] == [len(head)] * len(lines)
    assert rows[0].startswith("a  ")
