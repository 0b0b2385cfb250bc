"""The thread that reads control groups, on real processes."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbusd.broker.cgroup_reader import ANSWER, ANSWER_BYTES, REQUEST, answer_requests, cgroup_of, new_timer, set_timer
from tests.support.unit_tree import Connector, UnitTree

SECONDS = 30.0
"""The timeout of everything; a test that passes takes far less."""


@pytest.fixture
def reader() -> Iterator[socket.socket]:
    """The socket of a thread, which must end when it is closed."""
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own.settimeout(SECONDS)
    thread = threading.Thread(target=answer_requests, args=(other.detach(),), daemon=True)
    thread.start()
    yield own
    own.close()
    thread.join(SECONDS)
    assert not thread.is_alive()


def ask(reader: socket.socket, pidfd: int, pid: int, connection: int = 7) -> tuple[int, int, int, str]:
    """Return the answer about a process."""
    reader.send(REQUEST.pack(connection, pidfd, pid))
    answer = reader.recv(ANSWER_BYTES)
    return (*ANSWER.unpack_from(answer), answer[ANSWER.size :].decode())


def test_the_text_of_a_process_is_read(reader: socket.socket) -> None:
    connection, number, failure, text = ask(reader, os.pidfd_open(os.getpid()), os.getpid(), 1 << 60)
    assert (connection, failure) == (1 << 60, 0)
    assert text == Path("/proc/self/cgroup").read_text()
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own, other:
        # The number is that which is found at once; 0 if the kernel reports none.
        assert cgroup_of(own.fileno()) == number


def test_the_thread_closes_each_pidfd(reader: socket.socket) -> None:
    pidfd = os.pidfd_open(os.getpid())
    ask(reader, pidfd, os.getpid())
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pidfd)


@pytest.mark.slow
def test_a_process_that_has_ended_has_no_text(reader: socket.socket) -> None:
    child = subprocess.Popen(["sleep", "60"])
    pidfd = os.pidfd_open(child.pid)
    child.kill()
    # Not waited for: /proc has the process still.
    assert select.select([pidfd], [], [], SECONDS)[0]
    assert ask(reader, os.dup(pidfd), child.pid)[2:] == (errno.ESRCH, "")
    child.wait()
    assert ask(reader, pidfd, child.pid)[2:] == (errno.ESRCH, "")


@pytest.mark.slow
def test_a_pid_of_another_process_does_not_count(reader: socket.socket) -> None:
    """The kernel can give the pid of an ended process to another one."""
    child = subprocess.Popen(["true"])
    pidfd = os.pidfd_open(child.pid)
    child.wait()
    assert ask(reader, pidfd, os.getpid())[2:] == (errno.ESRCH, "")


def test_requests_are_answered_in_their_order(reader: socket.socket) -> None:
    for number in range(50):
        reader.send(REQUEST.pack(number, os.pidfd_open(os.getpid()), os.getpid()))
    assert [ANSWER.unpack_from(reader.recv(ANSWER_BYTES))[0] for _ in range(50)] == list(range(50))


def test_an_invalid_request_ends_the_thread() -> None:
    own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own:
        own.send(b"short")
        answer_requests(other.detach())
        assert own.recv(1) == b""


def test_no_socket_has_no_control_group() -> None:
    assert cgroup_of(-1) == -1
    with Path("/dev/null").open("rb") as file:
        assert cgroup_of(file.fileno()) == -1


@pytest.mark.usefixtures("needs_root")
def test_two_control_groups_have_two_numbers(folder: Path) -> None:
    tree = UnitTree()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen()
            found = []
            for name in ("a.service", "b.service", "a.service"):
                connector = Connector(tree.unit(name), str(folder / "socket"))
                accepted, _ = listener.accept()
                with accepted:
                    found.append(cgroup_of(accepted.fileno()))
                connector.close()
        assert found[0] == found[2]
        assert found[0] != found[1] or found == [0, 0, 0]
    finally:
        tree.remove()


def test_a_timer_ends_after_its_time() -> None:
    timer = new_timer()
    try:
        set_timer(timer, 0.001)
        assert select.select([timer], [], [], SECONDS)[0]
        assert os.read(timer, 8)
        set_timer(timer, 3_600.5)
        set_timer(timer, 0)
        with pytest.raises(BlockingIOError):
            os.read(timer, 8)
    finally:
        os.close(timer)
