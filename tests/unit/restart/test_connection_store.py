"""Connections outside every process: all there after a kill at any step, each once, and none that was not meant."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from sbusd.dataplane.closer import hang_up
from sbusd.restart import connection_store as parking
from sbusd.restart.connection_store import ConnectionStore, close_stored


class Street:
    """Connections, a store for them, and what is to be closed."""

    def __init__(self) -> None:
        self.live: list[socket.socket] = []
        self.peers: list[socket.socket] = []
        self.store = ConnectionStore.create(self.follow)

    def fds(self) -> list[int]:
        return [each.fileno() for each in self.live]

    def follow(self) -> Iterator[int]:
        """Iterate over the descriptors; some may come meanwhile."""
        place = 0
        while place < len(self.live):
            yield self.live[place].fileno()
            place += 1

    def step(self) -> None:
        """Let the store do all that takes steps."""
        while self.store.has_work:
            self.store.step()

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.live.append(mine)
            self.peers.append(theirs)

    def park_new(self, count: int) -> None:
        for _ in range(count):
            self.arrive()
            assert self.store.add(self.live[-1].fileno())

    def seen_by_the_next(self) -> set[int]:
        """Return the inodes that the next process finds; each must be there once."""
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
        """Return the inodes that the next process would find, and leave both pairs as they are."""
        sights = [parking._content_of(outlet) for _, outlet in self.store._pairs]
        assert max(sight.mark for sight in sights) == self.store._mark
        fds = [fd for sight in sights for fd in sight.fds]
        inodes = {os.fstat(fd).st_ino for fd in fds}
        for fd in fds:
            os.close(fd)
        return inodes

    def inodes(self) -> set[int]:
        return {os.fstat(fd).st_ino for fd in self.fds()}


@pytest.fixture
def street() -> Iterator[Street]:
    before = set(os.listdir("/proc/self/fd"))
    made = Street()
    yield made
    for each in (*made.live, *made.peers):
        each.close()
    made.store.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_who_is_parked_one_by_one_is_found(street: Street) -> None:
    assert street.seen_by_the_next() == set()
    street.park_new(5)
    assert street.seen_by_the_next() == street.inodes()
    assert street.seen_by_the_next() == street.inodes()  # looking takes nothing out


def test_a_full_queue_is_rewritten_without_the_dead(street: Street) -> None:
    street.park_new(40)
    gone = street.inodes()
    for each in street.live:
        each.close()
    street.live.clear()
    street.park_new(420)
    street.step()
    assert street.seen_by_the_next() == street.inodes()
    street.store.rewrite()
    assert street.seen_by_the_next() == street.inodes()
    assert not gone & street.seen_by_the_next() or gone & street.inodes()
    assert street.store.failures == 0


def test_connections_move_to_the_other_pair_in_steps_and_none_is_missing_meanwhile(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is one packet. Some come and some end between the steps; a kill at any of them finds all that were parked."""
    packets: list[int] = []
    send = parking._send

    def count(entrance: socket.socket, fds: list[int]) -> None:
        packets.append(len(fds))
        send(entrance, fds)

    monkeypatch.setattr(parking, "MAX_IN_PACKET", 20)
    monkeypatch.setattr(parking, "_send", count)
    street.park_new(parking.MOVE_AFTER)
    steps = 0
    while street.store.has_work:
        packets.clear()
        street.store.step()
        assert len(packets) <= 1
        assert sum(packets) <= 20
        assert street.peek() == street.inodes()
        steps += 1
        if steps < 30:
            street.park_new(1)
            assert street.peek() == street.inodes()
    # 128 and some that came, and the mark, went in; as many packets came out as had gone in one by one, and nothing.
    assert parking.MOVE_AFTER // 20 + parking.MOVE_AFTER < steps < 2 * parking.MOVE_AFTER
    assert street.seen_by_the_next() == street.inodes()
    assert street.store.failures == 0


def test_a_move_that_fails_leaves_all_where_they_are(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    street.park_new(parking.MOVE_AFTER)
    street.store.step()
    with monkeypatch.context() as patch:
        patch.setattr(parking, "_send", _refuse)
        street.store.step()
    assert not street.store.has_work
    assert street.seen_by_the_next() == street.inodes()
    street.park_new(300)  # more than the queue takes: those who waited for the move are counted if it fails
    with monkeypatch.context() as patch:
        patch.setattr(parking, "_send", _refuse)
        street.step()
    assert 0 < street.store.failures == len(street.inodes()) - len(street.seen_by_the_next())


def test_a_connection_lives_while_it_is_parked_and_ends_by_shutdown(street: Street) -> None:
    street.park_new(1)
    street.peers[0].setblocking(False)
    street.live.pop().close()
    with pytest.raises(BlockingIOError):
        street.peers[0].recv(10)
    fds, _ = ConnectionStore.peek(street.store)
    hang_up(fds[0])
    assert street.peers[0].recv(10) == b""


@pytest.mark.parametrize("step", ["sent", "marked", "emptied in part"])
def test_a_kill_while_all_are_rewritten_loses_nobody(street: Street, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    street.park_new(7)
    (_, outlet), (entrance, _) = street.store._pairs
    socket.send_fds(entrance, [b"\0"], street.fds()[:3] if step == "sent" else street.fds())
    if step != "sent":
        entrance.send(parking._MARK.pack(street.store._mark + 1))
    if step == "emptied in part":
        for _ in range(4):
            outlet.recv(16)
    other = ConnectionStore.adopt(street.store.descriptors, street.fds)
    fds, _ = other.peek()
    assert {os.fstat(fd).st_ino for fd in fds} == street.inodes()
    for fd in fds:
        os.close(fd)
    # What was half done is gone, and the next rewriting has the store in order.
    assert other.rewrite()
    other.close()
    assert street.seen_by_the_next() == street.inodes()


def test_where_no_descriptor_may_be_parked_it_is_counted(street: Street, monkeypatch: pytest.MonkeyPatch) -> None:
    street.park_new(2)
    monkeypatch.setattr(parking, "_send", _refuse)
    street.arrive()
    assert not street.store.add(street.live[-1].fileno())
    assert not street.store.rewrite()
    assert street.store.failures == 1
    monkeypatch.undo()
    assert len(street.seen_by_the_next()) == 2


def _refuse(*_args: object) -> int:
    raise OSError(109, "Too many references: cannot splice")


def test_who_finds_no_room_for_descriptors_is_told(street: Street) -> None:
    street.park_new(30)
    street.store.rewrite()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    other = ConnectionStore.adopt(street.store.descriptors, street.fds)
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


def test_a_lot_that_cannot_be_used_is_emptied_so_that_peers_see_the_end(street: Street) -> None:
    street.park_new(3)
    assert sum(close_stored(end) for end in street.store.descriptors) == 3
    assert [peer.recv(10) for peer in street.peers] == [b""] * 3
    assert close_stored(1 << 20) == 0
    with pytest.raises(ValueError, match="no part"):
        street.store.peek()


def test_invalid_ends_are_rejected(street: Street) -> None:
    with pytest.raises(ValueError, match="3 descriptors instead of 4"):
        ConnectionStore.adopt(street.store.descriptors[:3], street.fds)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wrong, pytest.raises(ValueError, match="kind"):
        ConnectionStore.adopt([*street.store.descriptors[:3], wrong.fileno()], street.fds)
    with open(os.devnull, "rb") as null, pytest.raises(OSError):
        ConnectionStore.adopt([*street.store.descriptors[:3], null.fileno()], street.fds)
