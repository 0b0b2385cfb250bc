"""Requests of clients: what each member may be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.blobs import ANYONE, Recipient, new_ticket
from sbus_services.blob.requests import Cause, Drop, Get, List, Put, Refusal, Stats, parse_request

TICKET = new_ticket()


def parse(**members: object) -> object:
    return parse_request(json.dumps(members).encode(), 600.0)


def test_valid_requests() -> None:
    assert parse(request="put", size=5) == Put(5, "application/octet-stream", 30.0, None, ANYONE, keep=False, is_any=False)
    full = parse(request="put", size=0, type="image/png", expire=600, uses=2, **{"for": "gid:5"}, keep=True, kind="blob")
    assert full == Put(0, "image/png", 600.0, 2, Recipient("gid", 5), keep=True, is_any=False)
    passed = parse(request="put", kind="any", **{"for": "conn:7"})
    assert passed == Put(0, "application/octet-stream", 30.0, 1, Recipient("conn", 7), keep=False, is_any=True)
    assert parse(request="get", ticket=TICKET) == Get(TICKET, is_any=False)
    assert parse(request="get", ticket=TICKET, kind="any") == Get(TICKET, is_any=True)
    assert parse(request="get", ticket=TICKET, host="alpha.example") == Get(TICKET, is_any=False, host="alpha.example")
    assert parse(request="drop", ticket=TICKET) == Drop(TICKET)
    assert (parse(request="list"), parse(request="list", after=TICKET)) == (List(""), List(TICKET))
    assert parse(request="stats") == Stats()


def test_the_default_time_is_not_above_the_maximum() -> None:
    request = parse_request(b'{"request":"put","size":1}', 5.0)
    assert isinstance(request, Put)
    assert request.expire == 5.0


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"request": "push"}, "request must be"),
        ({"request": "put"}, "size must be"),
        ({"request": "get", "ticket": TICKET, "host": 5}, "host must be the name of a host"),
        ({"request": "get", "ticket": TICKET, "host": "a/b"}, "host must be the name of a host"),
        ({"request": "get", "ticket": TICKET, "host": "a" * 256}, "host must be the name of a host"),
        ({"request": "get", "ticket": TICKET, "host": "a", "kind": "any"}, "is on this host"),
        ({"request": "put", "size": True}, "size must be"),
        ({"request": "put", "size": 1, "expire": 0}, "expire must be a number of seconds up to 600"),
        ({"request": "put", "size": 1, "expire": 601}, "up to 600"),
        ({"request": "put", "size": 1, "expire": float("nan")}, "expire must be"),
        ({"request": "put", "size": 1, "expire": "30s"}, "expire must be"),
        ({"request": "put", "size": 1, "uses": 0}, "uses must be"),
        ({"request": "put", "size": 1, "for": "root"}, "for must be"),
        ({"request": "put", "size": 1, "for": f"uid:{(1 << 32) - 1}"}, "for must be"),
        ({"request": "put", "size": 1, "for": f"conn:{1 << 63}"}, "for must be"),
        ({"request": "put", "size": 1, "keep": 1}, "keep must be"),
        ({"request": "put", "size": 1, "type": "a\nb/c"}, "type must be"),
        ({"request": "put", "size": 1, "type": f"a/{'b' * 127}"}, "type must be"),
        ({"request": "put", "size": 1, "kind": "all"}, "kind must be"),
        ({"request": "put", "size": 1, "color": 1}, "unknown member of put: 'color'"),
        ({"request": "put", "kind": "any"}, "requires for"),
        ({"request": "put", "kind": "any", "for": "uid:1", "uses": 2}, "has one use"),
        ({"request": "put", "kind": "any", "for": "uid:1", "expire": 31}, "up to 30"),
        ({"request": "get"}, "ticket must be"),
        ({"request": "drop", "ticket": TICKET.upper()}, "ticket must be"),
        ({"request": "list", "after": ""}, "after must be"),
    ],
)
def test_invalid_requests(members: dict[str, object], words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        parse(**members)
    assert refused.value.cause is Cause.INVALID


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(packet: bytes) -> None:
    try:
        found: object = parse_request(packet, 600.0)
    except Refusal as refusal:
        found = refusal.reason
    assert found
