"""Tests of tests/support/users.py: acting as a user is what the tests of secrets rest on."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from tests.support.users import ChildError, User


def test_call_runs_as_the_user_and_returns_its_value(first_user: User) -> None:
    assert first_user.call(lambda: (os.getresuid(), os.getresgid(), os.getgroups(), os.getcwd())) == (
        (first_user.uid,) * 3,
        (first_user.gid,) * 3,
        sorted(first_user.groups),
        "/",
    )
    assert os.geteuid() == 0


def test_call_raises_what_the_function_raised(first_user: User) -> None:
    with pytest.raises(PermissionError):
        first_user.call(lambda: Path("/root/x").write_text(""))


def test_call_says_that_a_result_does_not_travel(first_user: User) -> None:
    with pytest.raises(ChildError, match="does not travel"):
        first_user.call(lambda: lambda: None)


def test_call_says_that_the_child_ended_without_a_result(first_user: User) -> None:
    with pytest.raises(ChildError, match="without a result"):
        first_user.call(lambda: os._exit(3))


def test_call_kills_a_child_that_does_not_answer(first_user: User) -> None:
    reader, writer = os.pipe()
    with pytest.raises(TimeoutError):
        first_user.call(lambda: os.read(reader, 1), timeout_seconds=0.01)
    os.close(reader)
    os.close(writer)


def test_connect_shows_the_user_to_the_peer(first_user: User, second_user: User, folder: Path) -> None:
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path)
        Path(path).chmod(0o666)
        server.listen()
        for user in (first_user, second_user):
            with user.connect(path) as client, server.accept()[0] as peer:
                _, uid, gid = struct.unpack("iii", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                assert (uid, gid) == (user.uid, user.gid)
                client.send(b"packet")
                assert peer.recv(10) == b"packet"


@pytest.mark.slow
def test_run_and_start_run_as_the_user(first_user: User) -> None:
    assert first_user.run(["/usr/bin/id", "-u"]).stdout == f"{first_user.uid}\n"
    with first_user.start(["/usr/bin/id", "-G"]) as process:
        assert process.communicate()[0].split() == [str(number) for number in (first_user.gid, *sorted(first_user.groups))]
