"""After a kill at any step the store has each live connection exactly once."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from sbusd.dataplane.socket_closer import hang_up
from sbusd.restart import connection_store
from sbusd.restart.connection_store import ConnectionStore, close_stored


class Setup:
    """Connections and a store for them."""

    def __init__(self) -> None:
        self.live: list[socket.socket] = []
        self.peers: list[socket.socket] = []
        self.store = ConnectionStore.create(self.follow)

    def fds(self) -> list[int]:
        return [each.fileno() for each in self.live]

    def follow(self) -> Iterator[int]:
        """Iterate over the descriptors; some may be added meanwhile."""
        place = 0
        while place < len(self.live):
            yield self.live[place].fileno()
            place += 1

    def step(self) -> None:
        """Do all steps of the store."""
        while self.store.has_work:
            self.store.step()

    def connect_next(self, count: int = 1) -> None:
        for _ in range(count):
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.live.append(mine)
            self.peers.append(theirs)

    def store_new(self, count: int) -> None:
        for _ in range(count):
            self.connect_next()
            assert self.store.add(self.live[-1].fileno())

    def seen_by_the_next(self) -> set[int]:
        """Return the inodes that the next process finds. Each must be there once."""
        other = ConnectionStore.adopt(self.store.descriptors, self.fds)
        fds, is_cut = other.peek()
        assert not is_cut
        inodes = [os.fstat(fd).st_ino for fd in fds]
        for fd in fds:
            os.close(fd)
        other.close()
        assert len(set(inodes)) == len(inodes)
        return set(inodes)

    def peek(self) -> set[int]:
        """Return the inodes that the next process would find, and do not change the pairs."""
        sights = [connection_store._content_of(outlet) for _, outlet in self.store._pairs]
        assert max(sight.mark for sight in sights) == self.store._mark
        fds = [fd for sight in sights for fd in sight.fds]
        inodes = {os.fstat(fd).st_ino for fd in fds}
        for fd in fds:
            os.close(fd)
        return inodes

    def inodes(self) -> set[int]:
        return {os.fstat(fd).st_ino for fd in self.fds()}


@pytest.fixture
def setup() -> Iterator[Setup]:
    before = set(os.listdir("/proc/self/fd"))
    made = Setup()
    yield made
    for each in (*made.live, *made.peers):
        each.close()
    made.store.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_connections_added_one_by_one_are_found(setup: Setup) -> None:
    assert setup.seen_by_the_next() == set()
    setup.store_new(5)
    assert setup.seen_by_the_next() == setup.inodes()
    assert setup.seen_by_the_next() == setup.inodes()  # looking takes nothing out


def test_a_full_queue_is_rewritten_without_ended_connections(setup: Setup) -> None:
    setup.store_new(40)
    gone = setup.inodes()
    for each in setup.live:
        each.close()
    setup.live.clear()
    setup.store_new(420)
    setup.step()
    assert setup.seen_by_the_next() == setup.inodes()
    setup.store.rewrite()
    assert setup.seen_by_the_next() == setup.inodes()
    assert not gone & setup.seen_by_the_next() or gone & setup.inodes()
    assert setup.store.failures == 0


def test_connections_move_to_the_other_pair_in_steps_and_none_is_missing_meanwhile(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is one packet. Connections open and close between steps. A kill at any step finds all that were stored."""
    packets: list[int] = []
    send = connection_store._send

    def count(entrance: socket.socket, fds: list[int]) -> None:
        packets.append(len(fds))
        send(entrance, fds)

    monkeypatch.setattr(connection_store, "MAX_IN_PACKET", 20)
    monkeypatch.setattr(connection_store, "_send", count)
    setup.store_new(connection_store.MOVE_AFTER)
    steps = 0
    while setup.store.has_work:
        packets.clear()
        setup.store.step()
        assert len(packets) <= 1
        assert sum(packets) <= 20
        assert setup.peek() == setup.inodes()
        steps += 1
        if steps < 30:
            setup.store_new(1)
            assert setup.peek() == setup.inodes()
    # 128 and some that came, and the mark, went in; as many packets came out as had gone in one by one, and nothing.
    assert connection_store.MOVE_AFTER // 20 + connection_store.MOVE_AFTER < steps < 2 * connection_store.MOVE_AFTER
    assert setup.seen_by_the_next() == setup.inodes()
    assert setup.store.failures == 0


def test_a_rewrite_that_fails_changes_nothing(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.store_new(connection_store.MOVE_AFTER)
    setup.store.step()
    with monkeypatch.context() as patch:
        patch.setattr(connection_store, "_send", _refuse)
        setup.store.step()
    assert not setup.store.has_work
    assert setup.seen_by_the_next() == setup.inodes()
    setup.store_new(300)  # more than the queue takes: those who waited for the move are counted if it fails
    with monkeypatch.context() as patch:
        patch.setattr(connection_store, "_send", _refuse)
        setup.step()
    assert 0 < setup.store.failures == len(setup.inodes()) - len(setup.seen_by_the_next())


def test_a_stored_connection_stays_open_and_ends_by_shutdown(setup: Setup) -> None:
    setup.store_new(1)
    setup.peers[0].setblocking(False)
    setup.live.pop().close()
    with pytest.raises(BlockingIOError):
        setup.peers[0].recv(10)
    fds, _ = ConnectionStore.peek(setup.store)
    hang_up(fds[0])
    assert setup.peers[0].recv(10) == b""


@pytest.mark.parametrize("step", ["sent", "marked", "emptied in part"])
def test_a_kill_during_a_rewrite_loses_no_connection(setup: Setup, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.store_new(7)
    (_, outlet), (entrance, _) = setup.store._pairs
    socket.send_fds(entrance, [b"\0"], setup.fds()[:3] if step == "sent" else setup.fds())
    if step != "sent":
        entrance.send(connection_store._MARK.pack(setup.store._mark + 1))
    if step == "emptied in part":
        for _ in range(4):
            outlet.recv(16)
    other = ConnectionStore.adopt(setup.store.descriptors, setup.fds)
    fds, _ = other.peek()
    assert {os.fstat(fd).st_ino for fd in fds} == setup.inodes()
    for fd in fds:
        os.close(fd)
    # What was half done is gone, and the next rewriting has the store in order.
    assert other.rewrite()
    other.close()
    assert setup.seen_by_the_next() == setup.inodes()


def test_a_connection_that_cannot_be_stored_is_counted(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.store_new(2)
    monkeypatch.setattr(connection_store, "_send", _refuse)
    setup.connect_next()
    assert not setup.store.add(setup.live[-1].fileno())
    assert not setup.store.rewrite()
    assert setup.store.failures == 1
    monkeypatch.undo()
    assert len(setup.seen_by_the_next()) == 2


def _refuse(*_args: object) -> int:
    raise OSError(109, "Too many references: cannot splice")


def test_a_connection_that_could_not_be_stored_is_stored_when_there_is_room(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts the descriptors in queues for all processes of a user, so another one can have taken the room for a while."""
    monkeypatch.setattr(connection_store, "RETRY_SECONDS", 0.0)
    is_full, send = True, connection_store._send

    def fail_if_full(input_end: socket.socket, fds: list[int]) -> None:
        if is_full:
            raise OSError(errno.ETOOMANYREFS, "too many")
        send(input_end, fds)

    monkeypatch.setattr(connection_store, "_send", fail_if_full)
    setup.connect_next(3)
    for fd in setup.fds():
        assert not setup.store.add(fd)
    assert (setup.store.failures, setup.store.missing) == (3, 3)
    setup.store.step()
    assert setup.store.missing == 3
    setup.peers.pop(1).close()
    setup.live.pop(1).close()
    is_full = False
    setup.step()
    assert (setup.store.failures, setup.store.missing) == (3, 0)
    assert setup.seen_by_the_next() == {os.fstat(fd).st_ino for fd in setup.fds()}


def test_missing_descriptors_are_reported(setup: Setup) -> None:
    setup.store_new(30)
    setup.store.rewrite()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    other = ConnectionStore.adopt(setup.store.descriptors, setup.fds)
    free = os.dup(0)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 5, limits[1]))
        fds, is_cut = other.peek()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert is_cut
    for fd in fds:
        os.close(fd)
    other.close()


def test_an_unusable_store_is_emptied_so_that_peers_notice(setup: Setup) -> None:
    setup.store_new(3)
    assert sum(close_stored(end) for end in setup.store.descriptors) == 3
    assert [peer.recv(10) for peer in setup.peers] == [b""] * 3
    assert close_stored(1 << 20) == 0
    with pytest.raises(ValueError, match="no part"):
        setup.store.peek()


def test_invalid_ends_are_rejected(setup: Setup) -> None:
    with pytest.raises(ValueError, match="3 descriptors instead of 4"):
        ConnectionStore.adopt(setup.store.descriptors[:3], setup.fds)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wrong, pytest.raises(ValueError, match="kind"):
        ConnectionStore.adopt([*setup.store.descriptors[:3], wrong.fileno()], setup.fds)
    with open(os.devnull, "rb") as null, pytest.raises(OSError):
        ConnectionStore.adopt([*setup.store.descriptors[:3], null.fileno()], setup.fds)
