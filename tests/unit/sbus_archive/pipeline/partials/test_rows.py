"""Sums and prefixes of Arrow tables."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.pipeline.partials import rows as module
from sbus_archive.pipeline.partials.rows import compacted, encoded_array, folded, joined, prefixes, summed
from sbus_archive.tables.schema import PREFIX_SEGMENTS

_TEXT = st.text(st.sampled_from(list("ab/\n\\é")), max_size=9)


@given(st.lists(st.none() | _TEXT))
def test_a_prefix_is_the_first_segments(keys: list[str | None]) -> None:
    found = prefixes(pa.array(keys, pa.string()).dictionary_encode()).to_pylist()
    assert found == [None if key is None else "/".join(key.split("/")[:PREFIX_SEGMENTS]) for key in keys]


def test_nulls_are_a_key_and_add_nothing() -> None:
    keys = pa.array(["a", None, "a", None]).dictionary_encode()
    rows = pa.table({"key": keys, "sum": [1, None, 2, None], "least": [5, 4, 3, None], "most": [5, 4, 3, None]})
    found = summed(rows, ["key"], ["sum"], least=["least"], most=["most"]).to_pylist()
    assert sorted(found, key=str) == [{"key": "a", "sum": 3, "least": 3, "most": 5}, {"key": None, "sum": 0, "least": 4, "most": 4}]


@given(st.lists(st.tuples(st.none() | st.sampled_from("abcdef"), st.integers(0, 3)), min_size=1), st.integers(1, 4))
def test_the_heaviest_values_keep_their_rows(weighed: list[tuple[str | None, int]], most: int) -> None:
    values, weights = zip(*weighed, strict=True)
    rows = pa.table({"value": pa.array(values, pa.string()).dictionary_encode(), "weight": pa.array(weights, pa.int64())})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TOP", most)
        found = folded(rows, "value", "weight").column("value").to_pylist()
    sums = Counter[str]()
    for value, weight in weighed:
        if value is not None:
            sums[value] += weight
    heaviest = sorted(sums, key=lambda value: (-sums[value], value))[:most]
    assert found == [value if value in heaviest else None for value in values]


@given(st.lists(st.lists(st.none() | st.sampled_from("abcdef"), max_size=5), min_size=1, max_size=5))
def test_joined_tables_have_one_dictionary(parts: list[list[str | None]]) -> None:
    numbered = [(pa.array(part, pa.string()).dictionary_encode(), pa.array(range(len(part)), pa.int64())) for part in parts]
    whole = joined([pa.table({"text": text, "number": number}) for text, number in numbered])
    assert whole.column("text").to_pylist() == [value for part in parts for value in part]
    assert whole.column("number").to_pylist() == [number for part in parts for number in range(len(part))]
    dictionary = encoded_array(whole.column("text")).dictionary.to_pylist()
    assert len(set(dictionary)) == len(dictionary)


def test_numbers_in_place_of_nulls_are_not_used() -> None:
    """Sums by text leave undefined ones there."""
    text = [None if number % 3 else f"text{number}" for number in range(300)]
    rows = pa.table({"text": pa.array(text, pa.string()).dictionary_encode(), "number": list(range(300))})
    parts = [summed(rows.slice(begin, 100).combine_chunks(), ["text"], ["number"]) for begin in (0, 100, 200)]
    for _ in range(20):
        found = summed(joined(parts), ["text"], ["number"])
        assert sum(found.column("number").to_pylist()) == sum(range(300))
        assert found.num_rows == 101


def test_tables_without_chunks_are_joined() -> None:
    """As a filter leaves them that no row matches."""
    rows = pa.table({"text": pa.array(["a"]).dictionary_encode(), "number": [1]})
    none = rows.filter(pa.array([False])).combine_chunks()
    assert joined([none, none]).to_pylist() == []
    assert joined([none, rows, none]).to_pylist() == rows.to_pylist()


def test_a_dictionary_has_few_values_that_are_not_used() -> None:
    """Sums of a few messages do not keep the keys of all others in memory."""
    keys = pa.array([f"key{number}" for number in range(1_000)]).dictionary_encode()
    rows = pa.table({"key": keys, "number": list(range(1_000))}).slice(500, 2).combine_chunks()
    found = compacted(rows)
    assert found.to_pylist() == rows.to_pylist()
    assert encoded_array(found.column("key")).dictionary.to_pylist() == ["key500", "key501"]
    parts = [rows.slice(place % 2, 1).combine_chunks() for place in range(100)]
    assert len(encoded_array(joined(parts).column("key")).dictionary) == 2
