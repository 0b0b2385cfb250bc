"""Answers of an older, a newer, a broken and a hostile bus."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from sbus.bus_documents import BadResponseError
from sbusctl.responses import (
    ConnectionInfo,
    ask,
    ask_pages,
    connection_info,
    integer,
    mapping,
    number,
    objects,
    text,
    trace_entry,
)


class FakeBus:
    """Answers in turn, and notes what it is asked."""

    def __init__(self, answers: Sequence[bytes | dict[str, object]]) -> None:
        self.answers = [answer if isinstance(answer, bytes) else json.dumps(answer).encode() for answer in answers]
        self.asked: list[tuple[bytes, bytes | None]] = []

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        self.asked.append((key, payload))
        return self.answers.pop(0)


@pytest.mark.parametrize("answer", [b"", b"\xff\xfe", b"{", b"[1]", b"3", b"null", b"[" * 100_000, b"1" * 5000])
def test_a_reply_that_is_not_an_object_is_invalid(answer: bytes) -> None:
    with pytest.raises(BadResponseError, match="invalid response to !/bus/stats: not") as caught:
        ask(FakeBus([answer]), b"!/bus/stats")
    assert "\n" not in str(caught.value)


def test_pages_are_requested_until_the_last_one() -> None:
    bus = FakeBus(
        [
            {"connections": [{"id": 1}], "next": 1, "hidden": 2},
            {"connections": [{"id": 5}, "nonsense"], "next": 5, "hidden": 2},
            {"connections": [], "next": None, "hidden": 2},
        ]
    )
    pages = ask_pages(bus, b"!/bus/connections", None, "connections")
    assert bus.asked == [(b"!/bus/connections", payload) for payload in (None, b"1", b"5")]
    assert pages.as_json() == {"connections": [{"id": 1}, {"id": 5}], "hidden": 2}


def test_pages_with_a_question_of_their_own_and_two_lists() -> None:
    bus = FakeBus([{"key": "k", "new": 7, "recipients": [{"id": 1}], "others": [{"id": 2}], "next": 9}, {"recipients": [{"id": 10}]}])
    pages = ask_pages(bus, b"!/bus/trace", b"k", "recipients", "others")
    assert bus.asked == [(b"!/bus/trace", b"k"), (b"!/bus/trace", b"k\0" + b"9")]
    assert pages.as_json() == {"key": "k", "new": 7, "recipients": [{"id": 1}, {"id": 10}], "others": [{"id": 2}], "hidden": 0}


@pytest.mark.parametrize("second", [3, 2, -1])
def test_pages_that_lead_nowhere_end(second: int) -> None:
    bus = FakeBus([{"next": 3}, {"next": second}, {"next": 3}])
    with pytest.raises(BadResponseError, match="the pages repeat"):
        ask_pages(bus, b"!/bus/connections", None, "connections")


def test_missing_and_wrong_fields_are_none_and_unknown_ones_ignored() -> None:
    assert connection_info({"id": 3, "since": 1.5, "pid": "x", "uid": True, "colour": "red"}) == ConnectionInfo(
        id=3,
        pid=None,
        uid=None,
        since=1.5,
        inode=None,
        subscriptions=None,
        received_packets=None,
        received_bytes=None,
        delivered_packets=None,
        delivered_bytes=None,
        queued_packets=None,
        queued_bytes=None,
        lost_packets=None,
        refused_packets=None,
    )
    assert trace_entry({"patterns": ["a", 3, ""], "reason": 7}, gets_it=True).patterns == ("a", "")
    assert trace_entry({"patterns": "a"}, gets_it=False).patterns == ()


def test_fields() -> None:
    value = {"int": 3, "float": 2.5, "text": "x", "object": {"a": 1}, "list": [{"b": 2}, 3], "true": True}
    assert (integer(value, "int"), integer(value, "float"), integer(value, "true"), integer(value, "none")) == (3, None, None, None)
    assert (number(value, "int"), number(value, "float"), number(value, "true"), number(value, "text")) == (3.0, 2.5, None, None)
    assert (text(value, "text"), text(value, "int")) == ("x", None)
    assert (mapping(value, "object"), mapping(value, "list")) == ({"a": 1}, {})
    assert (objects(value, "list"), objects(value, "object")) == ([{"b": 2}], [])


@pytest.mark.parametrize("found", [float("nan"), float("inf"), 10**400, -(10**400)])
def test_numbers_that_no_arithmetic_survives_are_none(found: float) -> None:
    assert number({"since": found}, "since") is None
