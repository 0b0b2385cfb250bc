"""What is shown can neither drive a terminal nor forge a line."""

from __future__ import annotations

import pytest

from sbusd.ctl.visible import visible


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"plain", "plain"),
        ("größer ✓".encode(), "größer ✓"),
        (b"\x1b[2J", r"\x1b[2J"),
        (b"a\nb\r\tc\0", r"a\nb\r\tc\x00"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("\x9b31m".encode(), r"\x9b31m"),
        ("\u202egnp.exe".encode(), r"\u202egnp.exe"),
        ("\u2028".encode(), r"\u2028"),
        (b"\x7f", r"\x7f"),
        ("\U000e0041".encode(), r"\U000e0041"),
        ("file\udcff", r"file\xff"),
        ("\ud800", r"\ud800"),
        (b"", ""),
    ],
)
def test_shows(value: bytes | str, shown: str) -> None:
    assert visible(value) == shown


def test_leaves_backslashes_so_that_json_stays_readable() -> None:
    assert visible(rb'{"a":"\"x\""}') == r'{"a":"\"x\""}'


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_becomes_printable_and_stays_the_same_the_second_time(byte: int) -> None:
    shown = visible(b"a" + bytes([byte]) + b"b")
    assert shown.isprintable()
    assert visible(shown) == shown
