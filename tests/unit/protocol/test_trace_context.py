"""Which texts are trace contexts, and that an envelope with another text is still valid."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.protocol.envelope import Envelope, parse_envelope
from sbusd.protocol.trace_context import MAX_CONTEXT_BYTES, context_problem, read_context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
LONG = f"cc-{TRACE}-{SPAN}-01-"


@pytest.mark.parametrize("text", [CONTEXT, f"00-{TRACE}-{SPAN}-ff", LONG, LONG + "x" * (MAX_CONTEXT_BYTES - len(LONG))])
def test_valid_contexts(text: str) -> None:
    assert context_problem(text) == ""
    assert parse_envelope(Envelope("a", "b", context=text).encode()).context == text


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        [CONTEXT],
        "",
        "x",
        CONTEXT.upper(),
        CONTEXT + "\n",
        CONTEXT + "-x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        LONG + "x" * (MAX_CONTEXT_BYTES - len(LONG) + 1),
        LONG + "\u00e4",
    ],
)
def test_a_receiver_ignores_an_invalid_context(value: object) -> None:
    members = {"ver": 1, "uid": "b", "cmd": "a", "ctx": value}
    assert parse_envelope(json.dumps(members).encode()) == Envelope("a", "b")
    if isinstance(value, str):
        assert context_problem(value)


@given(st.text(alphabet="0f-a\n\u0660 x", max_size=80) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"))
def test_what_is_read_is_valid_ascii_of_bounded_size(text: str) -> None:
    read = read_context(text)
    assert read in {"", text}
    assert len(read.encode("ascii")) <= MAX_CONTEXT_BYTES
