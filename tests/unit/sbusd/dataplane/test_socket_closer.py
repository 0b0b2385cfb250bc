"""The closer of the bus: sockets of users whose descriptors hang do not keep those of others open."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from sbus.protocol.credentials import Credentials
from sbusd.dataplane import socket_closer
from sbusd.dataplane.socket_closer import THREADS, Closer
from tests.support.relays import wait_for

SECONDS = 60.0

FIRST_OF_CONTAINER = 100_000
"""From this uid on, all are charged to user 1."""


class Sockets:
    """Sockets of several users, of which some hang in close(2) until :meth:`release`, and their closer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._uids: dict[int, int] = {}
        self._hanging: set[int] = set()
        self._go_on = threading.Event()
        self._peers = contextlib.ExitStack()
        monkeypatch.setattr(socket_closer, "credentials_of", self._credentials_of)
        self.closer = Closer(self._close)
        self.closer.charged = lambda uid: 1 if uid >= FIRST_OF_CONTAINER else uid

    def add(self, uid: int, connection: int, *, hangs: bool = False) -> None:
        """Give the closer a socket of the user *uid*."""
        peer, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._peers.enter_context(peer)
        fd = sock.detach()
        self._uids[fd] = uid
        if hangs:
            self._hanging.add(fd)
        self.closer.add(fd, connection)

    def await_closed(self, count: int) -> list[int]:
        """Return the connections of the next *count* sockets that are closed."""
        closed: list[int] = []
        while len(closed) < count:
            assert select.select([self.closer], [], [], SECONDS)[0], "nothing more is closed"
            closed += self.closer.take_closed()
        return closed

    def release(self) -> None:
        """Let all closes return."""
        self._go_on.set()
        wait_for(lambda: not self.closer.waiting(), "all sockets to be closed")
        self._peers.close()

    def _credentials_of(self, fd: int) -> Credentials:
        if fd not in self._uids:
            raise OSError
        return Credentials(0, self._uids[fd], 0)

    def _close(self, fd: int) -> None:
        if fd in self._hanging:
            assert self._go_on.wait(SECONDS)
        os.close(fd)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sockets]:
    made = Sockets(monkeypatch)
    yield made
    made.release()
    made.closer.close()


@pytest.mark.parametrize("first", [1, FIRST_OF_CONTAINER])
def test_a_user_whose_sockets_hang_does_not_keep_those_of_others_open(sockets: Sockets, first: int) -> None:
    """Also with the ids of a container. All users shared eight threads, which took the sockets in the order of their ends."""
    step = first != 1
    for number in range(THREADS + 1):
        sockets.add(first + number * step, number, hangs=True)
    sockets.add(2, 1_000)
    assert sockets.await_closed(1) == [1_000]
    assert len(sockets.closer.waiting()) == THREADS + 1
    sockets.release()
    assert sorted(sockets.await_closed(THREADS + 1)) == list(range(THREADS + 1))


def test_a_hundred_hostile_users_do_not_keep_those_of_others_open(sockets: Sockets) -> None:
    for uid in range(100):
        sockets.add(uid, uid, hangs=True)
    sockets.add(100, 1_000)
    assert sockets.await_closed(1) == [1_000]
