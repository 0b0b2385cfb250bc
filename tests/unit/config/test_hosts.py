"""Addresses of hosts."""

from __future__ import annotations

import pytest

from sbusd.config.hosts import is_loopback, split_address


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
