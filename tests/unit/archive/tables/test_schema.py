"""The tables' columns are those of the manual page, and the manual's numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbusd.archive.tables.schema import CALL_SECONDS, TABLES, TOP, Table
from sbusd.pipeline.measures.flows import MAX_EVENTS
from sbusd.pipeline.measures.subscriptions import MAX_ROUTES

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


def test_the_manual_states_the_bounds() -> None:
    text = _plain(_PAGE)
    assert f"Only the {TOP} most used" in text
    assert f"during {CALL_SECONDS} seconds" in text
    assert f"the first {MAX_EVENTS} rows about subscriptions" in text
    assert f"the first {MAX_ROUTES} periods" in text


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_arrow_and_spark_have_the_same_columns(table: Table) -> None:
    assert table.arrow_schema().names == [*table.names, "date", "hour"]
    assert [part.split()[0] for part in re.split(r", (?![^<]*>)", table.ddl())] == list(table.names)
    assert table.keys == table.names[: len(table.keys)]
