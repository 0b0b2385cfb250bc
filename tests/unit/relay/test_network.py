"""Which addresses a remote host can have, in every notation."""

from __future__ import annotations

import ipaddress

import pytest

from sbusd.relay.network import is_of_another_host

NOT_OF_ANOTHER = [
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "100::1", "2001:db8::1"),
    # Notations that contain an IPv4 address, and reserved blocks.
    *("::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "64:ff9b::8.8.8.8", "64:ff9b:1:7f00:0:100::", "64:ff9b:1::8.8.8.8", "::8.8.8.8"),
    *("fec0::1", "5f00::1", "3fff::1", "3fff:fff::1", "4000::1", "192.88.99.1"),
]

OF_ANOTHER = [
    *("10.0.0.2", "172.16.0.2", "192.168.1.2", "100.64.0.1", "8.8.8.8"),
    *("fd00::2", "2a00:1450::1", "200:1234::1", "301:1234::1"),  # the last two are of Yggdrasil
]


@pytest.mark.parametrize("text", NOT_OF_ANOTHER)
def test_addresses_of_this_host_and_of_no_host(text: str) -> None:
    assert not is_of_another_host(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", OF_ANOTHER)
def test_addresses_of_another_host(text: str) -> None:
    assert is_of_another_host(ipaddress.ip_address(text))


def written(address: ipaddress.IPv4Address) -> list[ipaddress.IPv6Address]:
    """Return all IPv6 addresses that may contain *address*."""
    number = int(address)
    other = int(ipaddress.IPv4Address("8.8.8.8"))
    return [
        ipaddress.IPv6Address(f"::ffff:{address}"),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2002::")) | number << 80 | 1),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b:1::")) | number),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2001::")) | number << 64 | other ^ 0xFFFF_FFFF),
        ipaddress.IPv6Address(int(ipaddress.IPv6Address("2001::")) | other << 64 | number ^ 0xFFFF_FFFF),
        ipaddress.IPv6Address(number),
    ]


@pytest.mark.parametrize("text", [text for text in NOT_OF_ANOTHER if ":" not in text])
def test_an_embedded_address_is_found(text: str) -> None:
    assert [str(each) for each in written(ipaddress.IPv4Address(text)) if is_of_another_host(each)] == []


def test_a_host_behind_a_tunnel_is_one_and_one_behind_a_translation_is_not() -> None:
    mapped, sixtofour, nat64, local_nat64, *teredo, compatible = written(ipaddress.IPv4Address("8.8.8.8"))
    assert all(is_of_another_host(each) for each in (mapped, sixtofour, *teredo))
    assert not any(is_of_another_host(each) for each in (nat64, local_nat64, compatible))
