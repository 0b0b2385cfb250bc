"""Text from other users is one bounded line that prints, and no two short texts look alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"net/link/eth0", "net/link/eth0"),
        ("Grüße".encode(), "Grüße"),
        (b"a\nb\x1b[31m\x7f", r"a\x0ab\x1b[31m\x7f"),
        (b"a\\x0a", r"a\\x0a"),
        (b"\xff\xc3", r"\xff\xc3"),
        ("\u202eevil", r"\u202eevil"),
        ("\U000e0001", r"\U000e0001"),
        ("file\udcff", r"file\xff"),
        ("\ud800", r"\xed\xa0\x80"),
        ("", ""),
    ],
)
def test_unprintable_characters_are_escaped(text: bytes | str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 10 + "…"
    assert printable("ü" * 10, 10) == "ü" * 10
    assert printable(b"\n" * 5000, 3) == r"\x0a\x0a\x0a…"


@given(st.binary(max_size=200) | st.text(st.characters(codec=None), max_size=100))
def test_any_text_becomes_one_line_that_prints(text: bytes | str) -> None:
    assert printable(text).isprintable()


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_two_texts_never_look_alike(one: bytes, other: bytes) -> None:
    assert (printable(one) == printable(other)) == (one == other)
