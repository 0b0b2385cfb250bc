"""Keys of signals: a value adds no segment, and different values have different keys."""

from __future__ import annotations

import re
from typing import Any

import pytest
from dbus_fast import Variant
from hypothesis import given
from hypothesis import strategies as st

from sbusd.config.feed_dbus import MAX_FIELDS, MAX_TEXT_BYTES
from sbusd.feeds.dbus.connection import DBusSignal
from sbusd.feeds.dbus.key_template import MAX_PART_BYTES, key_maker, key_part
from sbusd.protocol.keys import MAX_KEY_BYTES

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("a/b", "a%2Fb"),
        ("*", "%2A"),
        ("", "-"),
        ("-", "%2D"),
        ("ü", "%C3%BC"),
        (None, "-"),
        ([1], "-"),
        (True, "true"),
        (5, "5"),
        ("!", "%21"),
    ],
)
def test_parts(value: Any, part: str) -> None:
    assert key_part(value) == part


@given(st.one_of(TEXTS, TEXTS.map(lambda text: text * 40)))
def test_a_part_is_one_short_printable_segment(text: str) -> None:
    part = key_part(text)
    assert re.fullmatch(r"(?:[A-Za-z0-9_.~:@+,=-]|%[0-9A-F]{2})+", part)
    assert len(part) <= MAX_PART_BYTES


@given(TEXTS, TEXTS)
def test_different_texts_have_different_parts(one: str, other: str) -> None:
    assert (key_part(one) == key_part(other)) == (one == other)


@given(st.text("%*/ü", min_size=100, max_size=400), st.text("%*/ü", min_size=100, max_size=400))
def test_different_long_texts_have_different_parts(one: str, other: str) -> None:
    assert (key_part(one) == key_part(other)) == (one == other)


def test_the_longest_key_fits() -> None:
    longest = "dbus/a" + "{arg0}" * MAX_FIELDS
    longest += "x" * (MAX_TEXT_BYTES - len(longest))
    assert len(key_maker(longest)("n.N", DBusSignal(":1.5", "/", "x.Y", "Z", "s", ["/" * 5000]))) <= MAX_KEY_BYTES


def test_fields() -> None:
    signal = DBusSignal(":1.5", "/a/b", "x.Y", "Z", "sv", ["first", Variant("i", 7)])
    key = key_maker("dbus/x-{sender}/{path}/{object}/{interface}/{member}/{arg0}.{arg1}/{arg2}")
    assert key("n.N", signal) == "dbus/x-n.N/%2Fa%2Fb/b/x.Y/Z/first.7/-"
