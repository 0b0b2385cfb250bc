"""Addresses of hosts."""

from __future__ import annotations

import pytest

from sbus_programs.config.hosts import AddressGroup, AddressGroups, is_loopback, plain_address, split_address


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:80", ("::1", 80)),
        ("::1:80", None),
        ("[127.0.0.1]:80", None),
        ("127.0.0.1", None),
        ("127.0.0.1:65536", None),
        ("127.0.0.1:-1", None),
        ("", None),
    ],
)
def test_addresses(address: str, split: tuple[str, int] | None) -> None:
    assert split_address(address) == split
    assert is_loopback(address) is (split is not None)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("::ffff:10.0.0.2", "10.0.0.2"), ("fe80::1%eth0", "fe80::1"), ("FD00::0002", "fd00::2"), ("10.0.0.2", "10.0.0.2"), ("?", "?")],
)
def test_an_address_is_written_in_one_way(text: str, plain: str) -> None:
    assert plain_address(text) == plain


def test_group_is_a_peer_an_address_or_a_network() -> None:
    groups = AddressGroups(["10.0.0.2", "fd00::2"])
    assert groups.group("::ffff:10.0.0.2") == AddressGroup("10.0.0.2", is_peer=True)
    assert groups.group("fd00::0002") == AddressGroup("fd00::2", is_peer=True)
    assert groups.group("fd00::3") == AddressGroup("fd00::/64", is_peer=False)
    assert groups.group("10.0.0.3") == AddressGroup("10.0.0.3", is_peer=False)
