"""Which columns find room."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sbusd.ctl.top.columns import CONNECTION_FIELDS, GAP, USER_FIELDS, Field, fitting


def _width(fields: list[Field]) -> int:
    return sum(field.width for field in fields) + GAP * (len(fields) - 1)


@pytest.mark.parametrize("fields", [CONNECTION_FIELDS, USER_FIELDS])
def test_names_are_unique_and_headings_fit(fields: tuple[Field, ...]) -> None:
    assert len({field.name for field in fields}) == len({field.heading for field in fields}) == len(fields)
    assert all(len(field.heading) <= field.width for field in fields)


@pytest.mark.parametrize("fields", [CONNECTION_FIELDS, USER_FIELDS])
def test_at_every_width_what_is_kept_fits_in_its_order(fields: tuple[Field, ...]) -> None:
    counts = []
    for width in range(1, 200):
        kept = fitting(fields, width, "queued-bytes")
        assert not kept or _width(kept) <= width
        assert [field for field in fields if field in kept] == kept
        counts.append(len(kept))
    assert counts[-1] == len(fields)
    assert all(after >= before - 1 for before, after in pairwise(counts))


def test_what_matters_is_there_in_80_columns() -> None:
    names = {field.name for field in fitting(CONNECTION_FIELDS, 80, "queued-bytes")}
    assert names >= {"user", "pid", "command", "in", "out", "queued", "queued-bytes", "kernel-in", "kernel-out", "lost"}
    users = {field.name for field in fitting(USER_FIELDS, 80, "queued-bytes")}
    assert users >= {"user", "connections", "in", "out", "queued", "queued-bytes", "kernel-in", "kernel-out", "lost"}


@pytest.mark.parametrize("name", [field.name for field in CONNECTION_FIELDS])
def test_the_column_that_it_is_sorted_by_is_always_there(name: str) -> None:
    assert name in {field.name for field in fitting(CONNECTION_FIELDS, 40, name)}


def test_cells_of_what_is_not_known_or_of_another_kind_are_dashes() -> None:
    for field in (*CONNECTION_FIELDS, *USER_FIELDS):
        assert field.cell({}) == field.cell({field.source: None}) == field.cell({field.source: [1]}) == "-"


def test_cells() -> None:
    row: dict[str, object] = {"id": 1234567, "user": "root", "queued_bytes": 2048, "received_packets_per_second": 0.25}
    cells = {field.name: field.cell(row) for field in CONNECTION_FIELDS}
    shares = [field for field in USER_FIELDS if field.name == "quota"]
    assert [field.cell({"quota_share": share}) for field in shares for share in (0.0, 0.999, 1.0, 1.5)] == ["0%", "99%", "100%", "150%"]
    assert (cells["id"], cells["user"], cells["queued-bytes"], cells["in"]) == ("1234567", "root", "2K", "0.2")
