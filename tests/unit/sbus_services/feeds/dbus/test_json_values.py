"""Values of D-Bus in JSON: all can be told apart by their signature, and their size is bounded."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from dbus_fast import Variant
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.feeds.dbus.json_values import JsonValues, TooLargeError

NUMBERS = st.one_of(st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats())
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.one_of(NUMBERS, TEXTS, st.binary(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(TEXTS, st.integers(0, 9)), inner, max_size=4),
        inner.map(lambda value: Variant("s", value, verify=False)),
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, True),
        (-5, -5),
        (1 << 63, 1 << 63),
        (1.5, 1.5),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        ("/a", "/a"),
        (b"\0\xff", "AP8="),
        ([1, [2]], [1, [2]]),
        ({1: "a", 2: "b"}, {"1": "a", "2": "b"}),
        ({True: 1.0}, {"true": 1.0}),
        (Variant("a{sv}", {"x": Variant("i", 1)}), {"type": "a{sv}", "data": {"x": {"type": "i", "data": 1}}}),
    ],
)
def test_values(value: Any, shown: Any) -> None:
    assert JsonValues(1000).of(value) == shown


@given(VALUES)
def test_every_value_is_valid_json_and_is_found_again(value: Any) -> None:
    shown = JsonValues(1 << 20).of(value)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown
    assert _restored(shown, value) == _plain(value)


@given(VALUES, st.integers(0, 100))
def test_the_size_is_bounded(value: Any, room: int) -> None:
    try:
        shown = JsonValues(room).of(value)
    except TooLargeError:
        return
    # Outside of ASCII a character takes up to twelve bytes, which the caller counts.
    assert len(json.dumps(shown, ensure_ascii=False, separators=(",", ":"))) <= 2 * room + 20


def test_a_value_that_is_not_of_dbus_is_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        JsonValues(10).of(object())


def _restored(shown: Any, like: Any) -> Any:
    """Return the value of which *shown* is the JSON, decoded by the types of *like*, as a signature would say."""
    if isinstance(like, Variant):
        return _restored(shown["data"], like.value)
    if isinstance(like, bytes):
        return base64.b64decode(shown)
    if isinstance(like, list):
        return [_restored(one, other) for one, other in zip(shown, like, strict=True)]
    if isinstance(like, dict):
        return {str(key): _restored(shown[str(key)], value) for key, value in like.items()}
    return repr(float(shown.replace("Infinity", "inf"))) if isinstance(like, float) and isinstance(shown, str) else repr(shown)


def _plain(value: Any) -> Any:
    """Return *value* in a form that can be compared: dictionaries by text, numbers by their form."""
    if isinstance(value, Variant):
        return _plain(value.value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, bytes) else repr(value)
