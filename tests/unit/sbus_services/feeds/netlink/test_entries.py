"""Keys and published attributes of entries."""

from __future__ import annotations

import json
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.feeds.netlink import entries
from sbus_services.feeds.netlink.entries import Address, Entry, Hop, Link, Neighbour, Route, text


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


def test_identity_distinguishes_kinds() -> None:
    assert len({entry.identity for entry in ENTRIES}) == len(ENTRIES)


def test_text() -> None:
    assert text("é".encode()) == "é"
    assert text(b"\xff") == "\ufffd"


@pytest.mark.parametrize(
    ("name", "segment"),
    [
        (b"eth0.100", "eth0.100"),
        (b"wlan-0_a", "wlan-0_a"),
        (b"br*", "br%2A"),
        (b"!", "%21"),
        (b"a b", "a%20b"),
        (b"50%", "50%25"),
        (b"x\xffy", "x%FFy"),
        ("é".encode(), "%C3%A9"),
        (b"a/b", "a%2Fb"),
        (b"a\nb", "a%0Ab"),
    ],
)
def test_escape(name: bytes, segment: str) -> None:
    assert entries.escape(name) == segment


@given(st.binary(max_size=20))
def test_escape_is_one_plain_segment_and_reads_back(name: bytes) -> None:
    segment = entries.escape(name)
    assert unquote_to_bytes(segment) == name
    assert segment.isascii()
    assert segment.isprintable()
    assert not set(segment) & set("/*! \0")


def test_address_keys_distinguish_prefix_lengths_and_peers() -> None:
    made = [
        entries.address_key(b"eth0", "10.0.0.1", None, 24),
        entries.address_key(b"eth0", "10.0.0.1", None, 16),
        entries.address_key(b"eth0", "10.0.0.1", "10.0.0.2", 32),
        entries.address_key(b"eth0", "10.0.0.1", "10.0.0.3", 32),
    ]
    assert made == [
        "net/address/eth0/10.0.0.1%2F24",
        "net/address/eth0/10.0.0.1%2F16",
        "net/address/eth0/10.0.0.1,10.0.0.2%2F32",
        "net/address/eth0/10.0.0.1,10.0.0.3%2F32",
    ]


def test_other_keys() -> None:
    assert entries.link_key(b"lo") == "net/link/lo"
    assert entries.route_key("main", "default") == "net/route/main/default"
    assert entries.route_key("100", "2001:db8::/32") == "net/route/100/2001:db8::%2F32"
    assert entries.neighbour_key(b"eth*", "fe80::1") == "net/neighbour/eth%2A/fe80::1"
