"""The JSON objects of the bus, and what is none."""

from __future__ import annotations

import pytest

from sbus.bus_documents import BadResponseError, parse_document


def test_an_object_is_returned() -> None:
    assert parse_document(b"!/bus/stats", b'{"scope":"bus","new":[1]}') == {"scope": "bus", "new": [1]}


@pytest.mark.parametrize(
    ("answer", "what"),
    [(b"", "not JSON"), (b"\xff", "not JSON"), (b"[" * 100_000, "not JSON"), (b"[]", "not a JSON object"), (b"1", "not a JSON object")],
)
def test_anything_else_names_the_response(answer: bytes, what: str) -> None:
    with pytest.raises(BadResponseError, match=f"^invalid response to !/bus/stats: {what}; check the version of the bus: sbusctl doctor$"):
        parse_document(b"!/bus/stats", answer)
