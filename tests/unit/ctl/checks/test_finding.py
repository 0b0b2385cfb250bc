"""Findings are plain values."""

from __future__ import annotations

from sbusd.ctl.checks.finding import Finding, Result


def test_advice_is_empty_where_nothing_is_to_be_done() -> None:
    assert Finding("socket", Result.OK, "fine").advice == ""
    assert [result.value for result in Result] == ["ok", "warn", "fail", "skip"]
