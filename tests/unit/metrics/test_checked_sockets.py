"""Sockets with unread descriptors: the ids of one user have one thread for their closes."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from sbusd.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbusd.metrics import checked_sockets
from sbusd.metrics.checked_sockets import THREADS, CheckedSocket, without_descriptors

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
    monkeypatch.setattr(checked_sockets, "_close", peers.close)
    monkeypatch.setattr(checked_sockets, "unread_descriptors", lambda _socket: 1)
    accepted_uid = OTHER

    class Credentials:
        """Replaces the struct that reads peer credentials."""

        size = 12

        def unpack(self, _data: bytes) -> tuple[int, int, int]:
            return 1, accepted_uid, 1

    monkeypatch.setattr(checked_sockets, "_PEER", Credentials())
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
