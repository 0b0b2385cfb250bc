"""The columns that fit, and the lines of a report."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from rich.cells import cell_len

from sbusctl.top.display import CONNECTION_FIELDS, GAP, USER_FIELDS, Field, TopReport, fitting, head_lines, plain_lines, terminal_lines
from sbusctl.top.samples import Row


def _width(fields: list[Field]) -> int:
    return sum(field.width for field in fields) + GAP * (len(fields) - 1)


@pytest.mark.parametrize("fields", [CONNECTION_FIELDS, USER_FIELDS])
def test_names_are_unique_and_headings_fit(fields: tuple[Field, ...]) -> None:
    assert len({field.name for field in fields}) == len({field.heading for field in fields}) == len(fields)
    assert all(len(field.heading) <= field.width for field in fields)


@pytest.mark.parametrize("fields", [CONNECTION_FIELDS, USER_FIELDS])
def test_at_every_width_the_kept_columns_fit_in_order(fields: tuple[Field, ...]) -> None:
    counts = []
    for width in range(1, 240):
        kept = fitting(fields, width, "queued-bytes")
        assert not kept or _width(kept) <= width
        assert [field for field in fields if field in kept] == kept
        counts.append(len(kept))
    assert counts[-1] == len(fields)
    assert all(after >= before - 1 for before, after in pairwise(counts))


def test_the_important_columns_fit_into_80_columns() -> None:
    names = {field.name for field in fitting(CONNECTION_FIELDS, 80, "queued-bytes")}
    assert names >= {"user", "pid", "command", "in", "out", "queued", "queued-bytes", "kernel-in", "kernel-out", "lost"}
    users = {field.name for field in fitting(USER_FIELDS, 80, "queued-bytes")}
    assert users >= {"user", "connections", "in", "out", "queued", "queued-bytes", "kernel-in", "kernel-out", "lost"}


@pytest.mark.parametrize("name", [field.name for field in CONNECTION_FIELDS])
def test_the_column_that_it_is_sorted_by_is_always_there(name: str) -> None:
    assert name in {field.name for field in fitting(CONNECTION_FIELDS, 40, name)}


def test_unknown_and_inapplicable_cells_are_dashes() -> None:
    for field in (*CONNECTION_FIELDS, *USER_FIELDS):
        assert field.cell({}) == field.cell({field.source: None}) == field.cell({field.source: [1]}) == "-"


def test_cells() -> None:
    row: dict[str, object] = {"id": 1234567, "user": "root", "queued_bytes": 2048, "received_packets_per_second": 0.25}
    cells = {field.name: field.cell(row) for field in CONNECTION_FIELDS}
    shares = [field for field in USER_FIELDS if field.name == "quota"]
    assert [field.cell({"quota_share": share}) for field in shares for share in (0.0, 0.999, 1.0, 1.5)] == ["0%", "99%", "100%", "150%"]
    assert (cells["id"], cells["user"], cells["queued-bytes"], cells["in"]) == ("1234567", "root", "2K", "0.2")


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
    assert second == "in 1000/s (2KiB/s), out -/s (-/s), lost -/s, refused -/s"
    assert third == "queued 3 (1.5KiB), lost 7, refused -"


def test_the_heading_reports_omissions() -> None:
    head = head_lines(replace(_REPORT, scope="connections", totals={**_TOTALS, "uptime_seconds": None}, unseen="no kernel"))
    assert head[0].endswith("hidden; totals of those listed")
    assert "up" not in head[0]
    assert head[-1] == "no kernel"


def test_a_pipe_gets_every_column_untruncated() -> None:
    name = "a-process-with-a-name"
    lines = plain_lines(replace(_REPORT, rows=[_row(1, command=name, unit="x" * 60)]), legend=True)
    headings = (
        "ID USER PID COMMAND UNIT SLICE SUBS IN/s INB/s OUT/s OUTB/s QUEUED QBYTES K-IN K-OUT LOST LOST/s REPL REFUSED BLKD BLKS BLKD-BY "
        "MODE"
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


def test_omitted_items_are_counted() -> None:
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
    long = terminal_lines(replace(_REPORT, rows=[_row(1, user="another-user1", pid=123456789)]), legend=True, width=80)[5]
    assert long.startswith("another… 123456789 reader")


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
