"""The sockets that the program creates."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.metrics import listener
from sbus_services.metrics.listener import (
    THREADS,
    CheckedSocket,
    ListenError,
    address_of,
    created_socket,
    remove_created,
    without_descriptors,
)


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


WAIT_SECONDS = 60.0
USER, FIRST, OTHER = 1_000, 100_000, 2_000

CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(FIRST, 65_536, USER)]))


class Peers:
    """Closes that end only for OTHER, and the credentials of peers."""

    def __init__(self) -> None:
        self.uids: dict[int, int] = {}
        self.ends = threading.Event()
        self.closed = threading.Event()

    def close(self, fd: int) -> None:
        """Close a socket; that of OTHER at once."""
        if self.uids[fd] == OTHER:
            self.closed.set()
        else:
            self.ends.wait(WAIT_SECONDS)
        os.close(fd)


def test_the_ids_of_a_user_cannot_keep_all_threads_busy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers, path = Peers(), str(folder / "socket")
    monkeypatch.setattr(listener, "_close", peers.close)
    monkeypatch.setattr(listener, "unread_descriptors", lambda _socket: 1)
    accepted_uid = OTHER

    class Credentials:
        """Replaces the struct that reads peer credentials."""

        size = 12

        def unpack(self, _data: bytes) -> tuple[int, int, int]:
            return 1, accepted_uid, 1

    monkeypatch.setattr(listener, "_PEER", Credentials())
    with without_descriptors(socket.create_server(path, family=socket.AF_UNIX), CHARGED) as listening:
        for accepted_uid in [*range(FIRST, FIRST + 2 * THREADS), OTHER]:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                accepted = _accept(listening)
                assert isinstance(accepted, CheckedSocket)
                peers.uids[accepted.fileno()] = accepted_uid
                accepted.close()
        is_closed = peers.closed.wait(WAIT_SECONDS)
        peers.ends.set()
        assert is_closed


def _accept(listening: socket.socket) -> socket.socket:
    """Accept a connection that is there."""
    listening.setblocking(True)
    return listening.accept()[0]
