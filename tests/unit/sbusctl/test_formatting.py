"""Numbers and times for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusctl.bench.results import COLUMNS as BENCH_COLUMNS
from sbusctl.commands import counters, link, relay, routing
from sbusctl.formatting import (
    Column,
    compact_bytes,
    compact_count,
    cut_text,
    human_bytes,
    human_count,
    human_duration,
    human_microseconds,
    percentile,
    table_lines,
    text_width,
)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (1024 * 1024 - 1, "1MiB"),
        (20 << 20, "20MiB"),
        (3 << 60, "3EiB"),
        (5000 << 60, "5000EiB"),
        (-2048, "-2KiB"),
    ],
)
def test_bytes(number: int | None, shown: str) -> None:
    assert human_bytes(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (-3.0, "0s"),
        (0.9, "0s"),
        (59.99, "59s"),
        (60, "1min"),
        (61, "1min1s"),
        (3600, "1h"),
        (3605, "1h"),
        (3 * 3600 + 120, "3h2min"),
        (86_400 * 4 + 2 * 3600 + 7, "4d2h"),
        (86_400 + 59, "1d"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert human_duration(seconds) == shown


def test_count_and_round_trip() -> None:
    assert human_count(None) == "-"
    assert human_count(12) == "12"
    assert human_microseconds(0.0000634) == "63us"


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (25, 1.0), (75, 3.0), (76, 4.0), (99, 4.0), (100, 4.0), (0.01, 1.0)])
def test_percentile_is_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value
    assert percentile([7.0], percent) == 7.0


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.4, "0"),
        (1023, "1023"),
        (1023.4, "1023"),
        (1023.5, "1K"),
        (1024, "1K"),
        (1536, "1.5K"),
        (10_000, "9.8K"),
        (10_240, "10K"),
        (1023 * 1024, "1023K"),
        (1024 * 1024 - 1, "1M"),
        (1 << 63, "8E"),
        ((1 << 64) - 1, "16E"),
    ],
)
def test_compact_bytes(number: float | None, shown: str) -> None:
    assert compact_bytes(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.001, "0.1"),
        (0.96, "1"),
        (1.25, "1.2"),
        (2.0, "2"),
        (9.94, "9.9"),
        (9.96, "10"),
        (99_999.4, "99999"),
        (99_999.5, "100k"),
        (123_456, "123k"),
        (999_400, "999k"),
        (999_500, "1M"),
        (4_512_345, "4.5M"),
    ],
)
def test_compact_counts(number: float | None, shown: str) -> None:
    assert compact_count(number) == shown


@pytest.mark.parametrize("exponent", range(64))
def test_compact_numbers_have_five_characters_at_most(exponent: int) -> None:
    for number in ((1 << exponent) - 1, 1 << exponent, (1 << exponent) + 1, (1 << exponent) * 0.999):
        assert len(compact_bytes(number)) <= 5
        assert len(compact_count(number)) <= 5


_COLUMNS = (Column("ID", is_number=True), Column("NAME"), Column("WHY"))


def test_columns_line_up_without_spaces_at_the_end_and_without_lines() -> None:
    lines = table_lines(_COLUMNS, [["1", "short", "a"], ["1234", "x", "because"]], legend=True, width=None)
    assert lines == ["  ID  NAME   WHY", "   1  short  a", "1234  x      because"]


def test_without_a_legend_there_is_no_heading() -> None:
    assert table_lines(_COLUMNS, [["1", "a", "b"]], legend=False, width=None) == ["1  a  b"]
    assert table_lines(_COLUMNS, [], legend=False, width=None) == []
    assert table_lines(_COLUMNS, [], legend=True, width=None) == ["ID  NAME  WHY"]


def test_without_a_width_nothing_is_cut_however_long() -> None:
    long = "w" * 5000
    assert table_lines(_COLUMNS, [["1", long, long]], legend=False, width=None) == [f"1  {long}  {long}"]
    wide = "漢" * 300
    assert table_lines(_COLUMNS, [["1", wide, "b"]], legend=False, width=None) == [f"1  {wide}  b"]


def test_with_a_width_cells_are_cut_and_lines_are_not_wrapped() -> None:
    lines = table_lines(_COLUMNS, [["1", "w" * 200, "b"]], legend=False, width=40)
    assert len(lines) == 1
    assert len(lines[0]) <= 40
    assert "…" in lines[0]


def test_cells_are_made_visible_() -> None:
    lines = table_lines(_COLUMNS, [["1", "[bold]x[/bold]\x1b[31m", "a\nb"]], legend=False, width=None)
    assert lines == [r"1  [bold]x[/bold]\x1b[31m  a\nb"]


_RANKED = (Column("ID", is_number=True), Column("NAME"), Column("BYTES", is_number=True, rank=2), Column("AGE", is_number=True, rank=1))


def test_columns_are_omitted_by_rank_and_named() -> None:
    row = [["1", "a-very-long-name", "12345", "10s"]]
    assert table_lines(_RANKED, row, legend=True, width=80)[0] == "ID  NAME              BYTES  AGE"
    assert table_lines(_RANKED, row, legend=True, width=25) == [
        "ID  NAME              AGE",
        " 1  a-very-long-name  10s",
        "",
        "Not shown: BYTES; use",
        "--json or a wider",
        "terminal.",
    ]
    assert table_lines(_RANKED, row, legend=True, width=15)[:2] == ["ID  NAME", " 1  a-very-lon…"]
    assert table_lines(_RANKED, row, legend=False, width=15) == ["1  a-very-long…"]


def test_a_heading_is_never_cut_while_the_columns_that_are_always_shown_fit() -> None:
    columns = (Column("A-LONG-HEADING"), Column("OTHER", rank=1))
    assert table_lines(columns, [["x" * 50, "y" * 50]], legend=True, width=14)[:2] == ["A-LONG-HEADING", "x" * 13 + "…"]


_TABLES = {
    "connections": (
        counters._COLUMNS,
        [
            *("184467", "4194304", "systemd-network", "front-end-worker-07 (gunicorn)", "user@1000.service"),
            *("user-1000.slice", "123d23h", "16384"),
            *("123456789", "1023.9MiB", "123456789", "1023.9MiB", "12345", "1023.9KiB", "123456", "12345"),
        ],
        "ID PID USER COMMAND QUEUED LOST",
    ),
    "members": (
        routing._MEMBER_COLUMNS,
        ["184467", "4194304", "systemd-network", "NetworkManager", "NetworkManager.service"],
        "ID PID USER COMMAND UNIT",
    ),
    "trace": (
        routing._TRACE_COLUMNS,
        [
            "184467",
            "4194304",
            "systemd-network",
            "NetworkManager",
            "no",
            "disconnect",
            "12 13 14 +3",
            "none of its patterns (16384) matches",
        ],
        "ID USER COMMAND RECEIVES REASON",
    ),
    "link": (
        link._COLUMNS,
        ["frontend-01.example", "alive", "123d23h", "1234M", "1023G", "99999", "99999", "16384", "16384", "99999"],
        "HOST STATE SILENT MESSAGES LOST UNKNOWN ERRORS",
    ),
    "relay": (
        relay._COLUMNS,
        ["4294967295", "123456", "16", "23h59min", "123d23h", "123d23h", "12345", "connection refused by alpha.example: [Errno 111]"],
        "HOST WAITING SENDING NEXT-RETRY FAILURES REASON",
    ),
    "bench": (
        BENCH_COLUMNS,
        ["300KiB", "99999", "99999", "99999", "99999", "1023M", "123456", "0", "12345us", "12345us", "12345us", "123456us"],
        "SIZE PUBLISHED /S DELIVERED /S LOST P50 P99 MAX",
    ),
}


@pytest.mark.parametrize("name", _TABLES)
def test_tables_fit_80_columns_with_whole_headings_and_numbers(name: str) -> None:
    columns, row, needed = _TABLES[name]
    lines = table_lines(columns, [row] * 20, legend=True, width=80)
    heading, *rows = lines[:21]
    assert all(text_width(line) <= 80 for line in lines)
    assert set(needed.split()) <= set(heading.split()) <= {column.heading for column in columns}
    shown = heading.split()
    for column, cell in zip(columns, row, strict=True):
        if column.is_number and column.heading in shown and column.heading != "/S":
            assert cell in rows[0].split()
    omitted = {column.heading for column in columns} - set(shown)
    assert omitted <= set(" ".join(lines[21:]).replace(",", " ").replace(";", " ").split())


@given(st.lists(st.lists(st.text(max_size=30), min_size=4, max_size=4), max_size=4), st.integers(1, 100), st.booleans())
def test_no_line_is_wider_than_the_terminal(rows: list[list[str]], width: int, legend: bool) -> None:
    lines = table_lines(_RANKED, rows, legend=legend, width=width)
    table = lines[: len(rows) + legend]
    assert all(text_width(line) <= width for line in table)


def test_wide_characters_are_cut_by_their_width() -> None:
    assert cut_text("漢字漢字", 5) == "漢字…"
    assert cut_text("漢字", 4) == "漢字"
    assert text_width("漢a") == 3
