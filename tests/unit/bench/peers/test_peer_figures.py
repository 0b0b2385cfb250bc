"""Evaluation of the rounds of bench-peers: medians, ratios of pairs, the fastest contender, and omissions."""

from __future__ import annotations

import pytest

from tests.bench.peers.figures import (
    BUSY,
    CPU,
    P50,
    RATE,
    Cell,
    Row,
    bests,
    digits,
    left_out,
    listing,
    losses,
    medians,
    peers_ahead,
    ratios,
    repetitions,
    spreads,
)


def cell(rates: list[float], cpus: list[float] | None = None, lost: int = 0) -> Cell:
    made = Cell()
    for number, rate in enumerate(rates):
        made.add({RATE: rate} | ({CPU: cpus[number]} if cpus else {}), lost if number == 0 else 0)
    return made


def row(**cells: Cell) -> Row:
    return Row("1:1", cells)


def test_a_ratio_is_the_median_of_pairs_and_not_the_ratio_of_medians() -> None:
    ours, peer = cell([100.0, 200.0, 400.0]), cell([300.0, 200.0, 200.0])
    assert peer.ratio(RATE, ours) == 1.0
    assert ours.middle(RATE) == 200.0
    assert peer.middle(RATE) == 200.0


def test_a_spread_is_the_range_by_the_median() -> None:
    assert cell([80.0, 100.0, 130.0]).spread(RATE) == pytest.approx(0.5)
    assert Cell().spread(RATE) is None
    assert cell([0.0, 0.0]).spread(RATE) is None  # processor time that was too short to be counted


def test_the_best_round_is_the_fastest_or_the_cheapest() -> None:
    made = cell([80.0, 130.0, 100.0], [5.0, 3.0, 4.0])
    assert (made.best(RATE), made.best(CPU), made.best(P50)) == (130.0, 3.0, None)
    assert bests(RATE, [row(sbusd=cell([1e3, 3e3]))]).splitlines()[-1].split() == ["sbusd", "3"]


def test_a_contender_that_failed_once_has_no_figures_at_all() -> None:
    failed = cell([100.0, 200.0], lost=3)
    failed.give_up("it ended")
    assert failed.middle(RATE) is None
    assert failed.ratio(RATE, cell([1.0, 1.0])) is None
    assert cell([1.0, 1.0]).ratio(RATE, failed) is None
    assert failed.lost == 0
    assert left_out([row(sbusd=cell([1.0]), peer=failed)]) == ["peer: it ended"]


def test_omissions_name_their_rows() -> None:
    failed = Cell(reason="too slow")
    rows = [Row("one", {"peer": failed}), Row("two", {"peer": cell([1.0])}), Row("three", {"other": cell([1.0])})]
    assert left_out(rows) == ["peer: too slow (one)"]
    assert left_out([rows[0], rows[2]]) == ["peer: too slow"]


def test_a_peer_is_ahead_of_the_best_of_ours_and_not_of_the_worst() -> None:
    made = row(sbusd=cell([100.0]), **{"sbusd+batch": cell([300.0]), "peer": cell([200.0]), "fast": cell([600.0])})
    assert made.best_of_ours(RATE) == "sbusd+batch"
    assert made.ahead(RATE) == {"fast": 2.0}
    assert peers_ahead([made]) == ["1:1, deliveries: fast 2.00 of sbusd+batch's"]


def test_less_is_better_for_times() -> None:
    ours, quick, slow = Cell(), Cell(), Cell()
    for made, time in ((ours, 50.0), (quick, 40.0), (slow, 60.0)):
        made.add({P50: time})
    assert row(sbusd=ours, quick=quick, slow=slow).ahead(P50) == {"quick": 0.8}


def test_an_explanatory_figure_has_no_winner() -> None:
    ours, peer = Cell(), Cell()
    for made, busy in ((ours, 0.9), (peer, 0.5)):
        made.add({BUSY: busy})
    assert row(sbusd=ours, peer=peer).ahead(BUSY) == {}


def test_without_a_figure_of_sbusd_no_peer_is_ahead() -> None:
    assert row(sbusd=Cell(reason="no"), peer=cell([5.0])).ahead(RATE) == {}


def test_losses_are_reported_with_their_row() -> None:
    assert losses([row(sbusd=cell([1.0]), peer=cell([1.0, 1.0], lost=7))]) == ["1:1: peer lost 7 messages"]
    assert losses([row(sbusd=cell([1.0]))]) == []


@pytest.mark.parametrize(("figure", "text"), [(None, "-"), (0.0123, "0.0123"), (9.876, "9.88"), (99.96, "100"), (12345.6, "12346")])
def test_three_digits(figure: float | None, text: str) -> None:
    assert digits(figure) == text


def test_tables_show_a_dash_for_unmeasured_figures() -> None:
    rows = [row(sbusd=cell([250e3], [1000.0]), peer=cell([125e3], [4000.0])), Row("1:8", {"sbusd": cell([1e6]), "late": cell([2e6])})]
    assert [line.split() for line in medians(RATE, rows).splitlines()] == [
        ["deliveries,", "k/s"],
        ["1:1", "1:8"],
        ["sbusd", "250", "1000"],
        ["peer", "125", "-"],
        ["late", "-", "2000"],
    ]
    assert [line.split() for line in ratios(RATE, rows, "sbusd").splitlines()[2:]] == [
        ["sbusd", "1.00", "1.00"],
        ["peer", "0.50", "-"],
        ["late", "-", "2.00"],
    ]
    assert medians(CPU, rows).splitlines()[2].split() == ["sbusd", "1000", "-"]
    assert len({len(line) for line in medians(RATE, rows).splitlines()[1:]}) == 1


def test_a_listing_has_a_line_for_each_contender() -> None:
    measured = row(sbusd=cell([200e3], [900.0]), peer=cell([50e3], [90.0], lost=2), gone=Cell(reason="no"))
    assert [line.split() for line in listing(measured, (RATE, CPU), "sbusd").splitlines()[1:]] == [
        ["k/s", "ratio", "CPU", "ns", "lost"],
        ["sbusd", "200", "1.00", "900", "0"],
        ["peer", "50", "0.25", "90", "2"],
        ["gone", "-", "-", "-", "-"],
    ]


def test_the_worst_spread_names_whose_it_is() -> None:
    *_, line = spreads([row(sbusd=cell([100.0, 110.0]), peer=cell([100.0, 300.0]))]).splitlines()
    assert line.split()[-2:] == ["100%", "peer"]


def test_what_was_too_short_to_be_counted_has_no_spread() -> None:
    of_zero, of_none = (spreads([row(sbusd=cell(rates))]).splitlines() for rates in ([0.0, 0.0], []))
    assert [line.split()[0] for line in of_zero] == ["spread", "middle"]
    assert of_zero == of_none


def test_a_repeated_round_is_reported() -> None:
    assert repetitions([row(sbusd=cell([1.0]), peer=Cell(repeated=["it stood still"]))]) == ["1:1: peer: it stood still"]
