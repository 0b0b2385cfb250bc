"""Baselines: each hour is compared with its own numbers, and a problem neither raises nor clears alerts."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from sbus_archive.pipeline.live import baseline
from sbus_archive.pipeline.live.alerts import Usual
from sbus_archive.pipeline.live.baseline import Baseline, Baselines, compute, hour_of, weeks_before
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.tables.hours import Hour
from sbus_archive.tables.publication import TableWriter
from sbus_programs.config.live import Anomaly
from tests.support.published_tables import publish_record
from tests.support.records import NOON, message

NOW = Hour("2026-11-20", 12)
WEEK_NS = 7 * 24 * HOUR_NS


def test_a_minute_is_in_its_hour() -> None:
    assert [hour_of(NOON // (60 * 10**9) + minute) for minute in (-1, 0, 59, 60)] == [NOW.preceding, NOW, NOW, NOW.following]


def test_each_hour_has_its_own_numbers_and_is_computed_once() -> None:
    asked = []

    def computed(hour: Hour) -> Baseline:
        asked.append(hour)
        return Baseline(hour, {f"k{hour.hour}": Usual(hour.hour, 0)}, 3)

    baselines = Baselines(computed)
    for hours in ([NOW], [NOW, NOW.following], [NOW.following, NOW], [NOW.following]):
        assert baselines.prepare(hours) == ""
        assert all(baselines.usual(hour, ()) == {f"k{hour.hour}": Usual(hour.hour, 0)} for hour in hours)
        assert baselines.prefixes >= {f"k{hour.hour}" for hour in hours}
    assert asked == [NOW, NOW.following]


def test_a_problem_keeps_the_last_numbers_for_raised_alerts_only() -> None:
    last = {"a": Usual(5, 0), "b": Usual(6, 0)}
    found = {NOW: Baseline(NOW, last, 3), NOW.following: Baseline(NOW.following, {}, 0, "no tables")}
    baselines = Baselines(found.__getitem__)
    assert baselines.prepare([NOW.following]) == "no tables"
    assert baselines.usual(NOW.following, {"a"}) is None
    assert baselines.prepare([NOW]) == ""
    assert baselines.prepare([NOW.following]) == "no tables"
    assert baselines.prepare([NOW.following]) == "", "a problem is reported once"
    assert baselines.usual(NOW.following, {"a"}) == {"a": Usual(5, 0)}
    assert baselines.prefixes == {"a", "b"}


def test_tables_of_the_same_hour_of_earlier_weeks_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: which hours of real tables are read, and with which rows."""
    starts = [NOON - 4 * WEEK_NS, NOON - 2 * WEEK_NS, NOON - WEEK_NS, NOON - WEEK_NS + HOUR_NS, NOON]
    rows = [message(number, "a/b/c", ts=start + number) for number, start in enumerate(starts)]
    tables = publish_record(tmp_path, {"alpha": rows, "beta": rows})
    calls = Mock(return_value={"a/b": Usual(0, 0)})
    monkeypatch.setattr(baseline, "usual_numbers", calls)
    found = compute(Mock(), tables, NOW, "alpha", Anomaly(weeks=4, min_weeks=3))
    assert found == Baseline(NOW, {"a/b": Usual(0, 0)}, 3)
    _, traffic, hours, host = calls.call_args.args
    assert (hours, host) == ([weeks_before(NOW, 4)[week - 1] for week in (1, 2, 4)], "alpha")
    assert traffic.num_rows == 6
    assert set(traffic.column("prefix").to_pylist()) == {"a/b"}


def test_too_few_weeks_and_tables_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    TableWriter(tmp_path / "empty")
    settings = Anomaly()
    found = compute(Mock(), tmp_path / "empty", NOW, "alpha", settings)
    assert (found.usual, found.weeks) == ({}, 0)
    assert found.problem == f"{tmp_path}/empty: tables of 0 weeks for this hour of the week, but min_weeks is 3"
    assert str(tmp_path / "none") in compute(Mock(), tmp_path / "none", NOW, "alpha", settings).problem
