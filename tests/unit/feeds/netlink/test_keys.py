"""No name produces an invalid, ambiguous or foreign key."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.feeds.netlink import keys


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
    assert keys.escape(name) == segment


@given(st.binary(max_size=20))
def test_escape_is_one_plain_segment_and_reads_back(name: bytes) -> None:
    segment = keys.escape(name)
    assert unquote_to_bytes(segment) == name
    assert segment.isascii()
    assert segment.isprintable()
    assert not set(segment) & set("/*! \0")


def test_address_keys_tell_prefix_lengths_and_peers_apart() -> None:
    made = [
        keys.address_key(b"eth0", "10.0.0.1", None, 24),
        keys.address_key(b"eth0", "10.0.0.1", None, 16),
        keys.address_key(b"eth0", "10.0.0.1", "10.0.0.2", 32),
        keys.address_key(b"eth0", "10.0.0.1", "10.0.0.3", 32),
    ]
    assert made == [
        "net/address/eth0/10.0.0.1%2F24",
        "net/address/eth0/10.0.0.1%2F16",
        "net/address/eth0/10.0.0.1,10.0.0.2%2F32",
        "net/address/eth0/10.0.0.1,10.0.0.3%2F32",
    ]


def test_other_keys() -> None:
    assert keys.link_key(b"lo") == "net/link/lo"
    assert keys.route_key("main", "default") == "net/route/main/default"
    assert keys.route_key("100", "2001:db8::/32") == "net/route/100/2001:db8::%2F32"
    assert keys.neighbour_key(b"eth*", "fe80::1") == "net/neighbour/eth%2A/fe80::1"
