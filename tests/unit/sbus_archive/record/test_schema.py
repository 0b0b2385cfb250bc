"""Rows to batches and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.record.schema import PARTITION_SCHEMA, SCHEMA, SORT_KEYS, Row, batch_of, key_bytes, key_text, rows_of
from tests.support.records import message, numbered, rows


def test_a_row_has_the_columns_of_the_schema() -> None:
    assert list(Row._fields) == SCHEMA.names
    assert set(SORT_KEYS) <= set(SCHEMA.names)
    assert not set(SCHEMA.names) & set(PARTITION_SCHEMA.names)


def test_every_column_is_documented() -> None:
    for field in [*SCHEMA, *PARTITION_SCHEMA]:
        assert (field.metadata or {}).get(b"doc"), field.name


@given(st.lists(rows(), max_size=8).map(numbered))
def test_any_rows_come_back(some: list[Row]) -> None:
    batch = batch_of(some)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    assert rows_of(batch) == some


def test_a_value_that_is_invalid_for_its_column_is_rejected() -> None:
    with pytest.raises((ValueError, TypeError)):
        batch_of([message(1)._replace(key="\udc80")])


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"", ""),
        (b"net/link/eth0", "net/link/eth0"),
        ("straße/ü".encode(), "straße/ü"),
        (b"a\\b", r"a\\b"),
        (b"\xff/x", r"\xff/x"),
        (rb"\xff", r"\\xff"),
        (b"\x01\n", "\x01\n"),
        (b"\xed\xb2\x80", r"\xed\xb2\x80"),
    ],
)
def test_known_keys(key: bytes, text: str) -> None:
    assert key_text(key) == text
    assert key_bytes(text) == key


@given(st.binary())
def test_any_key_survives_encoding(key: bytes) -> None:
    text = key_text(key)
    assert key_bytes(text) == key
    text.encode("utf-8")


@pytest.mark.parametrize("text", ["\\", r"a\b", r"\x", r"\xF0", r"\x0", "\\\\\\"])
def test_an_invalid_key_text_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid key "):
        key_bytes(text)
