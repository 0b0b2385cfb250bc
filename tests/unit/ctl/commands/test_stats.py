"""Counters for people."""

from __future__ import annotations

from sbusd.ctl.commands.stats import lines

_STATS = {
    "scope": "bus",
    "version": "1.2",
    "uptime_seconds": 61.0,
    "new": None,
    "counters": {"messages": 12345, "received_bytes": 2048},
    "log": {"written": 1, "odd\x1b": "x\ny"},
}


def test_sections_and_units() -> None:
    assert lines(_STATS, legend=True) == [
        "version         1.2",
        "new             -",
        "uptime          1min1s",
        "",
        "COUNTERS",
        "messages        12345",
        "received_bytes  2KiB",
        "",
        "LOG",
        "written         1",
        r"odd\x1b         x\ny",
    ]


def test_without_a_legend_no_headings() -> None:
    assert lines(_STATS, legend=False) == [line for line in lines(_STATS, legend=True) if "  " in line]


def test_an_empty_answer_is_an_empty_page() -> None:
    assert lines({}, legend=True) == []
