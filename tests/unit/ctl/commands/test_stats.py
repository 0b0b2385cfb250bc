"""Counters for people."""

from __future__ import annotations

from sbusd.ctl.commands.stats import lines
from sbusd.ctl.quantities import human_duration

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


def test_waits_are_named_one_in_a_line() -> None:
    waits = [
        {"publisher": 12, "publisher_uid": 0, "recipient": 7, "recipient_uid": 0, "paced": True, "ms": 1500},
        {"publisher": 3, "recipient": None, "paced": False},
    ]
    page = lines({"waits": waits}, legend=True)
    assert page[:2] == ["", "BLOCKED PUBLISHERS"]
    assert [" ".join(line.split()) for line in page[2:]] == [
        f"12 of root: blocked by 7 of root for {human_duration(1.5)}, paced",
        "3 of -: blocked by - of - for -",
    ]
    assert lines({"waits": []}, legend=True) == []


def test_a_connection_s_own_waits_are_numbers() -> None:
    page = lines({"connection": {"blocked_by": [{"id": 7, "ms": 3}, {"id": None}], "blocks": []}}, legend=False)
    assert [line.split() for line in page] == [["blocked_by", "7", "+1"], ["blocks", "-"]]
