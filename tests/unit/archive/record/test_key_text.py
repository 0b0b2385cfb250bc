"""Keys as text: exact both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.archive.record.key_text import key_bytes, key_text


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
