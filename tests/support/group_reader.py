"""The thread of the bus that reads control groups, replaced: a test decides what it answers, and when."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from sbusd.broker import units
from sbusd.broker.cgroup_reader import ANSWER, REQUEST


class GroupReader:
    """The replaced thread of one bus. Call :meth:`close` at the end."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        self.number = 0
        """What :func:`cgroup_of` returns."""

    def answer_requests(self, fd: int) -> None:
        """Take the socket of the thread."""
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)

    def cgroup_of(self, _fd: int) -> int:
        return self.number

    def requests(self) -> list[int]:
        """Return the connections that were requested since the last call."""
        found: list[int] = []
        while self.socket is not None:
            try:
                request = self.socket.recv(REQUEST.size)
            except BlockingIOError:
                break
            if not request:
                break
            connection, pidfd, _pid = REQUEST.unpack(request)
            os.close(pidfd)
            found.append(connection)
        return found

    def answer(self, connection: int, path: str = "/system.slice/web.service", *, number: int = 0, failure: int = 0) -> None:
        """Answer for *connection*."""
        assert self.socket is not None
        text = b"" if failure else f"0::{path}\n".encode()
        self.socket.send(ANSWER.pack(connection, number, failure) + text)

    def close(self) -> None:
        if self.socket is not None:
            self.requests()
            self.socket.close()
            self.socket = None


def replace_reader(monkeypatch: pytest.MonkeyPatch) -> GroupReader:
    """Replace the thread of each bus that is made from now on, and return the one that the next bus gets."""
    made = GroupReader()

    class Thread:
        """Runs its function at once."""

        def __init__(self, target: Callable[[int], None] = lambda _fd: None, args: tuple[int] = (0,), **_options: object) -> None:
            self._target, self._args = target, args

        def start(self) -> None:
            self._target(*self._args)

        def join(self, timeout: float) -> None:
            """Return at once: it has ended."""

    monkeypatch.setattr(units, "answer_requests", made.answer_requests)
    monkeypatch.setattr(units, "cgroup_of", made.cgroup_of)
    monkeypatch.setattr(units, "Thread", Thread)
    return made
