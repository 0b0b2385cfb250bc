"""Rows of a table added up by some of its columns: by Arrow, for a month has millions of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

BIN = "bin"
"""The column that :func:`with_bins` adds."""


def added_up(
    table: pa.Table, by: Sequence[str], sums: Sequence[str], *, largest: Sequence[str] = (), smallest: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return one row for each combination of *by*: the *sums*, and the *largest* and *smallest* values; rows in no order."""
    wanted = [(name, how) for names, how in ((sums, "sum"), (largest, "max"), (smallest, "min")) for name in names]
    grouped = table.group_by(list(by)).aggregate(wanted)
    names = {f"{name}_{how}": name for name, how in wanted}
    return [{names.get(name, name): value for name, value in row.items()} for row in grouped.to_pylist()]


def with_bins(table: pa.Table, minutes: int) -> pa.Table:
    """Return *table*, which has a column ``minute``, with the number of the bin that each minute is in, counted from 1970."""
    micros = table.column("minute").cast(pa.int64())
    return table.append_column(BIN, pc.divide(micros, minutes * 60 * 10**6))


def total(table: pa.Table, name: str) -> int:
    """Return the sum of one column; 0 where there are no rows."""
    return int(pc.sum(table.column(name)).as_py() or 0)
