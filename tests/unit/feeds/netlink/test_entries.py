"""Attributes are JSON with readable names."""

from __future__ import annotations

import json

import pytest

from sbusd.feeds.netlink.entries import Address, Entry, Hop, Link, Neighbour, Route, text


def names(index: int) -> bytes | None:
    return {1: b"lo", 2: b"br*\xff"}.get(index)


ENTRIES: list[Entry] = [
    Link(2, b"br*\xff", "up", ("up", "broadcast"), 1500, "02:00:00:00:00:01", "bridge", 1),
    Address(2, "inet6", "fe80::1", None, 64, "link", (), None, None),
    Route(
        "inet", "main", "default", None, 0, 0, "unicast", "global", "boot", None, None, None, (Hop(1, None, 1), Hop(9, "10.0.0.1", 2)), ()
    ),
    Neighbour(2, "inet", "10.0.0.2", None, "incomplete", ()),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_attributes_are_json_and_read_back(entry: Entry) -> None:
    attributes = entry.attributes(names)
    assert json.loads(json.dumps(attributes)) == attributes
    assert {"index", "name"} <= attributes.keys()


def test_link_says_its_master_by_name_and_index() -> None:
    attributes = ENTRIES[0].attributes(names)
    assert (attributes["master"], attributes["master_index"]) == ("lo", 1)
    assert attributes["name"] == "br*\ufffd"


def test_hop_over_an_unknown_link_has_no_name() -> None:
    hops = ENTRIES[2].attributes(names)["hops"]
    assert hops == [
        {"oif": 1, "name": "lo", "gateway": None, "weight": 1},
        {"oif": 9, "name": None, "gateway": "10.0.0.1", "weight": 2},
    ]


def test_keys_wait_for_the_link() -> None:
    assert ENTRIES[1].key(names) == "net/address/br%2A%FF/fe80::1%2F64"
    assert ENTRIES[1].key(lambda index: None) is None
    assert ENTRIES[3].key(lambda index: None) is None


def test_identity_tells_kinds_apart() -> None:
    assert len({entry.identity for entry in ENTRIES}) == len(ENTRIES)


def test_text() -> None:
    assert text("é".encode()) == "é"
    assert text(b"\xff") == "\ufffd"
