"""The columns of partial rows."""

from __future__ import annotations

import pytest

from sbus_archive.pipeline.partials.source import FOLDED, LEAST, MOST, columns_of, ddl_of, keys_of, partial_columns_of
from sbus_archive.tables.schema import TABLES, Table


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_columns_are_those_of_the_table(table: Table) -> None:
    """Without percentiles, which Spark computes."""
    names = {name for name in columns_of(table.name).names if name not in ("date", "hour")}
    assert names == {name for name in table.names if not name.startswith("latency_p")}


@pytest.mark.parametrize("table", [table for table in TABLES if table.name in FOLDED], ids=lambda table: table.name)
def test_keys_sums_and_folded_columns_are_columns(table: Table) -> None:
    names = partial_columns_of(table.name).names
    assert set(keys_of(table.name)) < set(names)
    assert {name for pair in FOLDED[table.name] for name in pair} <= set(names)
    assert {column for column, _ in FOLDED[table.name]} <= set(keys_of(table.name))
    assert not {*LEAST, *MOST} & set(keys_of(table.name))


def test_types_have_their_names_in_spark() -> None:
    ddl = ddl_of(partial_columns_of("links"))
    assert ddl.startswith("`date` string, `hour` int, `host` string, `ts` bigint, `seq` bigint, `is_following` boolean")
    assert "`entries` array<struct<name:string,alive:boolean,messages:bigint," in ddl
    assert "`minute` timestamp" in ddl_of(columns_of("traffic"))
    assert "`latencies` array<struct<bucket:bigint,calls:bigint>>" in ddl_of(columns_of("calls"))
