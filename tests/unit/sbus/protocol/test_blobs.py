"""Tickets, recipients and references."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.blobs import (
    MAX_REQUEST_BYTES,
    BlobRequestError,
    Recipient,
    Reference,
    blob_address,
    is_media_type,
    is_ticket,
    new_ticket,
    parse_recipient,
    parse_reference,
)

REFERENCE = Reference(new_ticket(), 5, "image/png", "alpha", 12.5)


def test_tickets_have_128_random_bits() -> None:
    tickets = {new_ticket() for _ in range(1_000)}
    assert len(tickets) == 1_000
    assert all(is_ticket(ticket) and len(ticket) == 26 for ticket in tickets)


@pytest.mark.parametrize("text", ["", "a" * 25, "a" * 27, "A" * 26, "a" * 25 + "1", "a" * 25 + "b", None, 5])
def test_other_words_are_no_tickets(text: object) -> None:
    assert not is_ticket(text)


@pytest.mark.parametrize("text", ["anyone", "uid:0", "gid:4294967294", "conn:9223372036854775807"])
def test_recipients(text: str) -> None:
    assert str(parse_recipient(text)) == text


@pytest.mark.parametrize("text", ["", "any", "uid:", "uid:-1", "uid:4294967295", "gid:x", "conn:9223372036854775808", "uid:1 ", 5, None])
def test_other_words_are_no_recipients(text: object) -> None:
    with pytest.raises(BlobRequestError, match="for must be"):
        parse_recipient(text)


def test_a_reference_comes_back() -> None:
    assert parse_reference(REFERENCE.encode()) == REFERENCE
    assert Recipient() == parse_recipient("anyone")


@pytest.mark.parametrize(
    "change",
    [
        {"sbus-blob": 2},
        {"sbus-blob": True},
        {"ticket": "x"},
        {"size": -1},
        {"size": 1.5},
        {"type": "png"},
        {"host": 5},
        {"host": "x" * 256},
        {"until": "now"},
        {"until": -1},
        {"until": float("inf")},
    ],
)
def test_other_messages_are_no_references(change: dict[str, object]) -> None:
    assert parse_reference(json.dumps({**json.loads(REFERENCE.encode()), **change}).encode()) is None


@given(st.binary(max_size=100) | st.binary(max_size=100).map(lambda data: b'{"sbus-blob"' + data))
def test_any_payload_is_parsed(payload: bytes) -> None:
    assert parse_reference(payload) is None


def test_long_payloads_are_not_parsed() -> None:
    assert parse_reference(REFERENCE.encode() + b" " * MAX_REQUEST_BYTES) is None


@pytest.mark.parametrize(
    ("bus", "address"),
    [
        ("/run/sbus.socket", "/run/sbus-blob.socket"),
        ("/run/sbus/lab.socket", "/run/sbus/lab-blob.socket"),
        ("/tmp/bus", "/tmp/bus-blob"),
    ],
)
def test_the_socket_is_next_to_that_of_the_bus(bus: str, address: str) -> None:
    assert blob_address(bus) == address


@pytest.mark.parametrize(
    ("text", "valid"), [("a/b", True), ("text/plain; charset=utf-8", True), ("a", False), ("a/b\n", False), (5, False)]
)
def test_media_types(text: object, valid: bool) -> None:
    assert is_media_type(text) is valid
