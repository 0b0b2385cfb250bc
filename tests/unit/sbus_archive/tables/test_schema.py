"""The tables' columns and limits are those of the manual page; latency buckets are narrow, and percentiles at most a little too high."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.tables.schema import LATENCY_STEPS, TABLES, Table, bucket_of, percentile, upper_bound

_PAGE = (Path(__file__).parents[4] / "man" / "sbus-pipeline.8").read_text()
_TYPES = {"TEXT": "string", "COUNT": "int64", "TIME": "timestamp", "HISTOGRAM": "list<bucket,calls>"}


def _plain(text: str) -> str:
    return " ".join(text.replace("\\&", "").split())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_manual_describes_each_column(table: Table) -> None:
    section = _PAGE.split(f"\n.Ss {table.name}\n")[1].split("\n.Ss ")[0]
    words, *items = re.split(r"^\.It Va ", section.removesuffix(".El"), flags=re.MULTILINE)
    assert table.meaning.lower() in _plain(words).lower()
    described = {item.partition("\n")[0]: _plain(item.partition("\n")[2].split("\n.El")[0]) for item in items}
    assert described == {f"{column.name} Pq {_TYPES[column.type.name]}": _plain(column.meaning) for column in table.columns}


def test_the_manual_names_no_other_table() -> None:
    tables = _PAGE.split("\n.Sh TABLES\n")[1].split("\n.Sh ")[0]
    assert re.findall(r"^\.Ss (\w+)$", tables, flags=re.MULTILINE) == [*(table.name for table in TABLES), "Latencies", "Names"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_arrow_has_the_columns(table: Table) -> None:
    assert table.arrow_schema().names == [*table.names, "date", "hour"]
    assert table.keys == table.names[: len(table.keys)]


def test_buckets_lie_side_by_side() -> None:
    bounds = [upper_bound(bucket) for bucket in range(40 * LATENCY_STEPS)]
    assert bounds == sorted(set(bounds))
    for below, above in itertools.pairwise(bounds):
        assert bucket_of(below) + 1 == bucket_of(below + 1) == bucket_of(above)


@given(st.integers(0, 2**62))
def test_a_latency_is_in_its_bucket(latency: int) -> None:
    bound = upper_bound(bucket_of(latency))
    assert latency <= bound <= latency * (1 + 1 / LATENCY_STEPS)


@given(st.lists(st.integers(0, 2**40), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_little_too_large_at_most(latencies: list[int], percent: int) -> None:
    true = sorted(latencies)[-(-len(latencies) * percent // 100) - 1]
    found = percentile([(bucket_of(latency), 1) for latency in latencies], percent, max(latencies))
    assert found == min(upper_bound(bucket_of(true)), max(latencies))


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 50, 0) is None
    assert percentile([(3, 0)], 50, 3) is None
