"""What the kernel says of the other end of a connection."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from sbus.protocol.credentials import Credentials
from sbusd.dataplane.peer import credentials_of
from tests.support.users import FIRST, User


def test_own_credentials() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with closing(ours), closing(theirs):
        assert credentials_of(ours.fileno()) == Credentials(os.getpid(), os.getuid(), os.getgid(), frozenset(os.getgroups()))


def accepted_from(user: User) -> Credentials:
    """Return the credentials of a connection that a process of *user* has made."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(b"")
        listener.listen()
        client = user.connect(listener.getsockname())
        accepted, _ = listener.accept()
        with closing(client), closing(accepted):
            return credentials_of(accepted.fileno())


def test_another_user_with_its_supplementary_groups(first_user: User) -> None:
    found = accepted_from(first_user)
    assert (found.uid, found.gid, found.groups) == (FIRST.uid, FIRST.gid, frozenset(FIRST.groups))
    assert found.pid not in (0, os.getpid())


@pytest.mark.parametrize("count", [0, 1, 64, 65, 256, 257, 5_000])
def test_any_number_of_supplementary_groups(needs_root: None, count: int) -> None:
    groups = tuple(range(70_000, 70_000 + count))
    assert accepted_from(User(61_003, 61_003, groups)).groups == frozenset(groups)


def test_no_peer_has_the_groups_of_the_one_before(needs_root: None) -> None:
    """Sets that are equal one after another are one object; others of the same size, and none, are different."""
    wanted = [(70_000,), (70_000,), (70_001,), (), (), (70_000, 70_001), (70_000,)]
    found = [accepted_from(User(61_003, 61_003, groups)).groups for groups in wanted]
    assert found == [frozenset(groups) for groups in wanted]
    assert found[0] is found[1]
    assert found[0] is not found[2]


def test_a_descriptor_that_is_not_a_connected_unix_socket_is_an_error() -> None:
    reader, writer = os.pipe()
    try:
        for fd in (reader, -1):
            with pytest.raises(OSError, match="SO_PEERCRED"):
                credentials_of(fd)
    finally:
        os.close(reader)
        os.close(writer)


def test_errors_leave_no_descriptor_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(OSError, match="SO_PEERCRED"):
            credentials_of(-1)
    assert len(os.listdir("/proc/self/fd")) == before
