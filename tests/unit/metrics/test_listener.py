"""The sockets that the program creates."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sbusd.metrics.listener import ListenError, address_of, created_socket, remove_created


def test_a_unix_socket_is_open_to_all_users_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.socket"
    made = created_socket(str(path))
    assert (path.stat().st_mode & 0o777, address_of(made)) == (0o666, str(path))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    remove_created(made, str(path))
    assert not path.exists()


@pytest.mark.parametrize(("place", "shown"), [("127.0.0.1:0", "127.0.0.1:"), ("[::1]:0", "[::1]:")])
def test_a_loopback_address(place: str, shown: str) -> None:
    if "::" in place and not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("there is no IPv6 here")
    made = created_socket(place)
    assert address_of(made).startswith(shown)
    remove_created(made, place)


@pytest.mark.parametrize("place", ["0.0.0.0:80", "192.0.2.1:80", "localhost:80", "metrics.socket", "127.0.0.1", "127.0.0.1:x", ":80", ""])
def test_another_place_is_refused(place: str) -> None:
    with pytest.raises(ListenError, match="neither an absolute path nor a loopback address"):
        created_socket(place)


def test_an_address_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match=r"cannot listen on 127[.]0[.]0[.]1:99999: "):
        created_socket("127.0.0.1:99999")
    with pytest.raises(ListenError, match="no/such/socket: No such file or directory"):
        created_socket(str(tmp_path / "no/such/socket"))
