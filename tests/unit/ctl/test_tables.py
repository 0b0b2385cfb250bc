"""Plain columns."""

from __future__ import annotations

from sbusd.ctl.tables import Column, table_lines

_COLUMNS = (Column("ID", is_number=True), Column("NAME"), Column("WHY"))


def test_columns_line_up_without_spaces_at_the_end_and_without_lines() -> None:
    lines = table_lines(_COLUMNS, [["1", "short", "a"], ["1234", "x", "because"]], legend=True, width=None)
    assert lines == ["  ID  NAME   WHY", "   1  short  a", "1234  x      because"]


def test_no_legend_is_no_heading() -> None:
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


def test_cells_are_made_visible_and_mean_nothing_to_rich() -> None:
    lines = table_lines(_COLUMNS, [["1", "[bold]x[/bold]\x1b[31m", "a\nb"]], legend=False, width=None)
    assert lines == [r"1  [bold]x[/bold]\x1b[31m  a\nb"]
