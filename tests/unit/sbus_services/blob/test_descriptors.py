"""The closer of sbus-blob: what hostile users send, and their connections, delay neither blobs nor connections of others."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from sbus_services.blob import descriptors
from sbus_services.blob.descriptors import Closer, DescriptorKind, hang_up
from tests.support.relays import wait_for

HANGING = 1_000_000
"""A descriptor above this blocks until the test ends."""


class Closes:
    """A closer, and whom it has closed something of."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.blocked: set[int] = set()
        """Descriptors that exist, whose close blocks."""
        self._arrived = threading.Semaphore(0)
        self.closer = Closer(lambda _user: self._arrived.release(), self._close)

    def wait(self, count: int = 1) -> None:
        """Wait until *count* descriptors more are closed."""
        for _ in range(count):
            assert self._arrived.acquire(timeout=60)

    def connection(self) -> tuple[socket.socket, socket.socket]:
        """Return a connection with an unread descriptor, and its peer."""
        peer, connection = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(peer, [b"x"], [0])
        return connection, peer

    def _close(self, fd: int) -> None:
        if fd >= HANGING or fd in self.blocked:
            assert self.go_on.wait(60)
        if fd < HANGING:
            os.close(fd)


@pytest.fixture
def closes() -> Iterator[Closes]:
    made = Closes()
    yield made
    made.go_on.set()
    wait_for(lambda: made.closer.total == 0, "all descriptors to be closed")


def test_users_whose_connections_hang_do_not_delay_others(closes: Closes) -> None:
    """There were 32 threads for connections of all users."""
    users = range(2, 66)
    for user in users:
        closes.closer.add(user, DescriptorKind.FOREIGN, HANGING, HANGING)
    connection, peer = closes.connection()
    hang_up(connection, 1, closes.closer)
    closes.wait()
    peer.close()
    assert (closes.closer.pending(1), closes.closer.foreign) == (0, 2 * len(users))


def test_memory_is_closed_while_hostile_users_have_all_threads(closes: Closes) -> None:
    users = range(2, DescriptorKind.FOREIGN.value + 3)
    for user in users:
        closes.closer.add(user, DescriptorKind.FOREIGN, HANGING, HANGING)
    reader, writer = os.pipe()
    closes.closer.add(1, DescriptorKind.MEMORY, writer)
    closes.wait()
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert (closes.closer.pending(1), closes.closer.pending(2), closes.closer.foreign) == (0, 2, 2 * len(users))


def test_connections_that_cannot_be_closed_count_for_their_user(closes: Closes, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = []
    for _ in range(3):
        connection, peer = closes.connection()
        closes.blocked.add(connection.fileno())
        peers.append(peer)
        hang_up(connection, 1, closes.closer)
    connection, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hang_up(connection, 1, closes.closer)  # nothing in it can block
    assert (closes.closer.pending(1), closes.closer.pending(2), closes.closer.foreign) == (3, 0, 3)
    monkeypatch.setattr(descriptors, "HANG_SECONDS", 3_600.0)
    assert not closes.closer.is_hanging(1)
    monkeypatch.setattr(descriptors, "HANG_SECONDS", 0.0)
    wait_for(lambda: closes.closer.is_hanging(1), "the close to begin")
    assert not closes.closer.is_hanging(2)
    closes.go_on.set()
    closes.wait(3)
    assert (closes.closer.pending(1), closes.closer.is_hanging(1)) == (0, False)
    for each in (*peers, peer):
        each.close()
