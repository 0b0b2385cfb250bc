"""Loopback addresses, and the names and origins that belong to them."""

from __future__ import annotations

import pytest

from sbusd.web.addresses import ListenAddress


@pytest.mark.parametrize(
    ("text", "host", "port", "authority"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080, "127.0.0.1:8080"),
        ("127.9.8.7:0", "127.9.8.7", 0, "127.9.8.7:0"),
        ("localhost:1", "127.0.0.1", 1, "127.0.0.1:1"),
        ("[::1]:65535", "::1", 65535, "[::1]:65535"),
        ("127.0.0.1:80", "127.0.0.1", 80, "127.0.0.1"),
    ],
)
def test_a_loopback_address(text: str, host: str, port: int, authority: str) -> None:
    address = ListenAddress.parse(text)
    assert (address.host, address.port, address.authority) == (host, port, authority)
    assert authority in address.authorities
    assert f"http://{authority}" in address.origins


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not HOST:PORT"),
        ("127.0.0.1", "is not HOST:PORT"),
        (":80", "is not HOST:PORT"),
        ("127.0.0.1:x", "is not HOST:PORT"),
        ("127.0.0.1:-1", "is not HOST:PORT"),
        ("127.0.0.1:٣", "is not HOST:PORT"),
        ("127.0.0.1:65536", "is not HOST:PORT"),
        ("127.0.0.1:" + "9" * 5_000, "is not HOST:PORT"),
        ("::1:80", "in brackets"),
        ("[127.0.0.1]:80", "in brackets"),
        ("0.0.0.0:80", "is not a loopback address"),
        ("[::]:80", "is not a loopback address"),
        ("192.0.2.1:80", "ssh -L"),
        ("127.0.0.1.evil.example:80", "is not a loopback address"),
    ],
)
def test_another_address_is_rejected(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("[", r"\[")):
        ListenAddress.parse(text)


def test_the_default_port_is_left_out_as_browsers_do() -> None:
    assert ListenAddress("127.0.0.1", 80).authorities == {"127.0.0.1", "localhost"}
    assert ListenAddress("127.0.0.1", 81).origins == {"http://127.0.0.1:81", "http://localhost:81"}
