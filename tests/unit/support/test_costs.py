"""Tests of what is shown about the processor time of tests."""

from __future__ import annotations

import pytest

from tests.support import costs


def _report(name: str) -> pytest.TestReport:
    return pytest.TestReport(name, ("", 0, name), {}, "passed", None, "teardown")


def test_costs_come_with_their_reasons_and_costly_ones_without_are_named() -> None:
    cases = {"a": (3.0, "Boots.\n\nMore."), "b": (25.0, ""), "c": (30.0, " Ten kills. ")}
    reports = []
    for name, (seconds, text) in cases.items():
        reports.append(_report(name))
        costs.note(reports[-1], text, seconds)
    found = costs.costs([_report("other"), "no report", *reports])
    assert found == [costs.Cost(30.0, "c", "Ten kills."), costs.Cost(25.0, "b", ""), costs.Cost(3.0, "a", "Boots.")]
    assert costs.lines(found, 2) == [
        "    58.0 s  all 3 tests",
        "    30.0 s  c: Ten kills.",
        "    25.0 s  b: no reason",
        "b: more than 20 s of processor time need a reason in the docstring",
    ]
