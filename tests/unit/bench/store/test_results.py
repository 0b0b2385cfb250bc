"""What bench-store prints."""

from __future__ import annotations

from tests.bench.store.results import ROWS, Results, bound_lines, table


def filled() -> Results:
    """Return results of two rounds."""
    results = Results()
    for own, other in ((40_000, 80_000), (60_000, 60_000)):
        results.add("groups", "sbus-store", own)
        results.add("groups", "Redis", other)
    for lost in (0, 1):
        results.add("lost", "sbus-store", lost)
    results.add("redelivery", "sbus-store", 0.005)
    results.add("redelivery", "Redis", 0.5)
    return results


def test_a_ratio_is_that_of_paired_rounds_and_greater_is_better() -> None:
    by_name = {row.name: row for row in ROWS}
    results = filled()
    assert results.ratio(by_name["groups"], "Redis") == 0.75
    assert results.ratio(by_name["redelivery"], "Redis") == 100
    assert results.ratio(by_name["groups"], "JetStream") is None
    assert results.figure(by_name["groups"], "sbus-store") == 50_000


def test_losses_of_all_rounds_count() -> None:
    lines = dict(bound_lines(filled()))
    assert lines["lost after kill -9: 1 <= 0: NO"] is False
    assert lines["job after kill -9: 5 ms <= 10 ms: ok"] is True
    assert lines["puts/s, 16, 64 at a time: 50,000 >= 30,000: ok"] is True


def test_the_table_has_80_columns_at_most() -> None:
    shown = table(filled(), 1_000_000).splitlines()
    assert max(map(len, shown)) <= 80
    assert len(shown) == 1 + len(ROWS)
