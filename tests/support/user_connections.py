"""Connections of other users, made by children of a small process: a fork of pytest takes thirty milliseconds of processor time.

The process is this file, run as a program; it imports nothing of the project.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
from collections.abc import Sequence

_REQUEST_BYTES = 1 << 17
"""Maximum size of a request: a user can be in thousands of groups."""


class UserConnections:
    """The process, which ends with the one that has made this."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # subprocess would count as a program that the test starts.
            command = [sys.executable, "-I", "-S", __file__]
            os.posix_spawn(sys.executable, command, {}, file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)])

    def connect(self, ids: tuple[int, int, Sequence[int]], address: bytes | str, kind: int, timeout_seconds: float) -> socket.socket:
        """Return a socket that a process with *ids*, which are a user, a group and other groups, has connected; it has ended.

        Raises OSError as connect(2) does, TimeoutError.
        """
        request = json.dumps([*ids, kind, os.fsdecode(address)]).encode()
        with self._lock:
            self._socket.settimeout(timeout_seconds)
            self._socket.send(request)
            try:
                number, fds, _, _ = socket.recv_fds(self._socket, _REQUEST_BYTES, 1)
                ended = self._socket.recv(_REQUEST_BYTES)
            except TimeoutError:
                user_connections.cache_clear()  # this process still waits
                raise
        assert ended == b"ended", (number, ended)
        if not fds:
            raise OSError(int(number), os.strerror(int(number)))
        return socket.socket(fileno=fds[0])


@functools.cache
def user_connections(pid: int) -> UserConnections:
    """Return what makes connections for the caller, whose process id is *pid*: a child of it makes its own."""
    return UserConnections()


def _serve() -> None:
    """Serve requests until the tests have closed the socket, which is standard input."""
    os.closerange(3, 1 << 16)
    os.chdir("/")
    with socket.socket(fileno=0) as tests:
        while request := tests.recv(_REQUEST_BYTES):
            pid = os.fork()
            if pid == 0:
                _connect(tests, request)
            os.waitpid(pid, 0)
            tests.send(b"ended")


def _connect(tests: socket.socket, request: bytes) -> None:
    """Connect as a user, pass the socket or the number of the error to *tests*, and end."""
    uid, gid, groups, kind, address = json.loads(request)
    number = 0
    try:
        with socket.socket(socket.AF_UNIX, kind) as sock:
            try:
                os.setgroups(groups)
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
                sock.connect(os.fsencode(address))
            except OSError as error:
                number = error.errno or 0
            socket.send_fds(tests, [b"%d" % number], [] if number else [sock.fileno()])
    finally:
        os._exit(0)


if __name__ == "__main__":
    _serve()
