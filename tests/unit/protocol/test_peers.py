"""Peers as the bus tells them."""

from __future__ import annotations

import pytest

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.peers import Peer, connection_address, make_peer, parse_address, parse_sender


def test_a_sender() -> None:
    peer = parse_sender(b"!/from/12/!/cred/100/1000/4242")
    assert peer == Peer(12, uid=1000, gid=100, pid=4242, key=b"!/cred/100/1000/4242")
    assert peer.address == b"!/conn/12/"


def test_behind_a_prefix_the_last_credentials_are_its_own() -> None:
    key = b"!/cred/1/2/3/!/cred/100/1000/4242"
    assert make_peer(7, key) == Peer(7, uid=1000, gid=100, pid=4242, key=key)


@pytest.mark.parametrize(
    "key",
    [
        b"!/from/",
        b"!/from/x/!/cred/1/2/3",
        b"!/from/-1/!/cred/1/2/3",
        b"!/from/1/!/cred/1/2/",
        b"!/from/1/!/cred/1/2/3/",
        b"!/from/1/x!/cred/1/2/3",
        b"!/from/1/!/cred/1/2/99999999999",
        b"!/from/1",
    ],
)
def test_what_names_no_sender(key: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_sender(key)
    assert caught.value.code is ErrorCode.EPROTO


def test_addresses_there_and_back() -> None:
    assert parse_address(connection_address(4_294_967_296)) == 4_294_967_296


@pytest.mark.parametrize("address", [b"", b"!/conn/", b"!/conn/x/", b"!/conn/1", b"!/conn/1/x", b"!/conn/999999999999999999999/"])
def test_what_is_no_address(address: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_address(address)
