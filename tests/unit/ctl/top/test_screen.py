"""How a report looks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from sbusd.ctl.top.rates import Row
from sbusd.ctl.top.screen import TopReport, head_lines, plain_lines, terminal_lines


def _row(number: int, **more: object) -> Row:
    """Return the row of a connection."""
    return {
        "id": number,
        "user": "alice",
        "pid": 4000 + number,
        "command": "reader",
        "unit": "reader.service",
        "queued_bytes": 1536,
        **more,
    }


_TOTALS: Row = {
    "connections": 2,
    "hidden": 1,
    "uptime_seconds": 61.0,
    "received_packets_per_second": 1000.0,
    "received_bytes_per_second": 2048.0,
    "delivered_packets_per_second": None,
    "queued_packets": 3,
    "queued_bytes": 1536,
    "lost_packets": 7,
}

_REPORT = TopReport(
    clock=1_700_000_000.1234,
    seconds=2.0,
    scope="bus",
    totals=_TOTALS,
    rows=[_row(1), _row(2)],
    by_user=False,
    sorted_by="queued-bytes",
    unseen="",
)


def test_the_head() -> None:
    first, second, third = head_lines(_REPORT)
    assert first[8:] == " up 1min1s, 2 connections, 1 of other users hidden"
    assert second == "in 1000/s (2KB/s), out -/s (-B/s), lost -/s, refused -/s"
    assert third == "queued 3 (1.5KB), lost 7, refused -"


def test_the_head_says_what_is_not_the_whole() -> None:
    head = head_lines(replace(_REPORT, scope="connections", totals={**_TOTALS, "uptime_seconds": None}, unseen="no kernel"))
    assert head[0].endswith("hidden; totals of those listed")
    assert "up" not in head[0]
    assert head[-1] == "no kernel"


def test_a_pipe_gets_every_column_and_cuts_nothing() -> None:
    name = "a-process-with-a-name"
    lines = plain_lines(replace(_REPORT, rows=[_row(1, command=name, unit="x" * 60)]), legend=True)
    headings = (
        "ID USER PID COMMAND UNIT SUBS IN/s INB/s OUT/s OUTB/s QUEUED QBYTES K-IN K-OUT LOST LOST/s REPL REFUSED BLKD BLKS BLKD-BY MODE"
    )
    assert " ".join(lines[4].split()) == headings
    assert lines[5].split()[:5] == ["1", "alice", "4001", name, "x" * 60]
    assert len(plain_lines(_REPORT, legend=False)) == 2


@pytest.mark.parametrize("width", [1, 10, 40, 80, 132, 300])
@pytest.mark.parametrize("height", [1, 3, 5, 24])
def test_a_terminal_is_never_overrun(width: int, height: int) -> None:
    rows = [_row(number, command="名" * 40, user="\x1b[31m\n", unit="🚌" * 30) for number in range(100)]
    lines = terminal_lines(replace(_REPORT, rows=rows), legend=True, width=width, height=height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)


def test_what_finds_no_room_is_counted() -> None:
    rows = [_row(number) for number in range(100)]
    lines = terminal_lines(replace(_REPORT, rows=rows), legend=True, width=80, height=24)
    assert len(lines) == 24
    # Three lines of totals, an empty one, the headings, and the last one.
    assert lines[-1] == f"… {100 - (24 - 6)} more"
    assert len(terminal_lines(replace(_REPORT, rows=rows), legend=True, width=80)) == 5 + 100
    assert len(terminal_lines(replace(_REPORT, rows=rows), legend=False, width=80, height=100)) == 100


def test_columns_stay_in_their_places() -> None:
    """A number that is too wide is shown whole, but a text is cut."""
    quiet, busy = (
        terminal_lines(replace(_REPORT, rows=[_row(1, received_packets_per_second=rate)]), legend=True, width=80)
        for rate in (0.0, 99_999.0)
    )
    assert quiet[4] == busy[4]
    assert len(quiet[5]) == len(busy[5])
    long = terminal_lines(replace(_REPORT, rows=[_row(1, user="somebody-else", pid=123456789)]), legend=True, width=80)[5]
    assert long.startswith("somebod… 123456789 reader")


def test_json_has_all_and_exactly() -> None:
    assert _REPORT.as_json() == {
        "time": 1_700_000_000.123,
        "seconds": 2.0,
        "scope": "bus",
        "totals": _TOTALS,
        "kernel": {"available": True},
        "connections": _REPORT.rows,
    }
    by_user = replace(_REPORT, by_user=True, unseen="no", seconds=None).as_json()
    assert (by_user["users"], by_user["kernel"], by_user["seconds"]) == (_REPORT.rows, {"available": False, "reason": "no"}, None)
