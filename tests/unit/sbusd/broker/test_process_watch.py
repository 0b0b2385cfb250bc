"""Processes that end while another process holds their socket, and while none does."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from sbusd.broker import process_watch
from sbusd.broker.process_watch import ProcessWatch, is_hung_up
from sbusd.dataplane.peer import pidfd_of


class Parent:
    """A process that connects to a listener, and a child that inherits the socket. Either ends on request."""

    def __init__(self, *, has_heir: bool) -> None:
        reader, self._stay = os.pipe()
        heir_reader, self._heir_stays = os.pipe()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(b"")
            listener.listen()
            self._pid = os.fork()
            if not self._pid:
                self._live(listener.getsockname(), reader, heir_reader, has_heir=has_heir)
            self.socket, _ = listener.accept()
        os.close(reader)
        os.close(heir_reader)

    def _live(self, address: bytes, reader: int, heir_reader: int, *, has_heir: bool) -> None:
        """Run the process. Never returns."""
        try:
            os.close(self._stay)
            os.close(self._heir_stays)
            own = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            own.connect(address)
            if has_heir and not os.fork():
                reader = heir_reader
            os.read(reader, 1)
        finally:
            os._exit(0)

    def end(self) -> None:
        """End the process, and wait until it has."""
        os.close(self._stay)
        os.waitpid(self._pid, 0)

    def close(self) -> None:
        """End the child, and close the socket of the bus."""
        os.close(self._heir_stays)
        self.socket.close()


@pytest.fixture
def reported() -> list[tuple[int, bytes]]:
    """Reported ends."""
    return []


@pytest.fixture
def watch(reported: list[tuple[int, bytes]]) -> Iterator[ProcessWatch]:
    """A watch that appends its reports to *reported*, and that must close all descriptors."""
    before = set(os.listdir("/proc/self/fd"))
    made = ProcessWatch(lambda connection, pattern: reported.append((connection, pattern)))
    yield made
    made.close()
    assert set(os.listdir("/proc/self/fd")) == before


def is_ready(watch: ProcessWatch) -> bool:
    """Return whether a switch would call drain."""
    return bool(select.select([watch.fileno()], [], [], 0)[0])


def test_the_end_of_a_process_is_reported_once_if_a_child_holds_the_socket(watch: ProcessWatch, reported: list[tuple[int, bytes]]) -> None:
    parent = Parent(has_heir=True)
    with closing(parent):
        assert watch.bind(7, parent.socket.fileno(), b"p")
        assert watch.bind(7, parent.socket.fileno(), b"q")
        assert (len(watch), is_ready(watch)) == (1, False)
        parent.end()
        assert is_ready(watch)
        watch.drain()
        assert reported == [(7, b"p")]
        assert not is_ready(watch)
        watch.drain()
        assert reported == [(7, b"p")]


def test_no_end_is_reported_if_no_process_holds_the_socket(watch: ProcessWatch, reported: list[tuple[int, bytes]]) -> None:
    parent = Parent(has_heir=False)
    with closing(parent):
        watch.bind(7, parent.socket.fileno(), b"p")
        parent.end()
        watch.drain()
        assert reported == []
        assert is_hung_up(parent.socket.fileno())
        assert not is_ready(watch)


def test_a_pattern_cannot_be_bound_to_an_ended_process(watch: ProcessWatch) -> None:
    parent = Parent(has_heir=True)
    with closing(parent):
        parent.end()
        with pytest.raises(ProcessLookupError):
            watch.bind(7, parent.socket.fileno(), b"p")
        assert not watch.watches(7)
        assert not is_hung_up(parent.socket.fileno())


def test_the_descriptor_of_a_connection_is_closed_with_its_last_pattern(watch: ProcessWatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        for pattern in (b"p", b"p", b"q"):
            assert watch.bind(7, ours.fileno(), pattern)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert [watch.release(7, pattern) for pattern in (b"x", b"p", b"q", b"p")] == [False, False, False, True]
        assert (watch.watches(7), len(os.listdir("/proc/self/fd"))) == (False, before)
        assert watch.release(7, b"p") is False
        assert watch.forget(7) is False


def test_a_kernel_without_such_descriptors_binds_nothing(watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_watch, "pidfd_of", lambda _fd: None)
    assert watch.bind(7, 0, b"p") is False
    assert len(watch) == 0


def test_a_descriptor_that_cannot_be_watched_is_closed(watch: ProcessWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    # epoll does not support regular files.
    file = os.open(__file__, os.O_RDONLY)
    monkeypatch.setattr(process_watch, "pidfd_of", lambda _fd: file)
    with pytest.raises(PermissionError):
        watch.bind(7, 0, b"p")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
    assert len(watch) == 0


def test_a_descriptor_that_is_not_a_connection_has_no_process() -> None:
    with pytest.raises(OSError, match="SO_PEERPIDFD"):
        pidfd_of(-1)
