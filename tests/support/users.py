"""Two users that are not root, by their numbers alone: they need no entry in passwd(5), so nothing is added to the machine."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TypeVar

from tests.support.user_connections import user_connections

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
"""The timeout of a child process; a test that passes takes far less."""


class ChildError(AssertionError):
    """A function run as a user exited early, or raised an exception that cannot be pickled; holds its traceback."""


@dataclass(frozen=True, slots=True)
class User:
    """A user whose identity the test, running as root, can assume."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups."""

    def call(self, function: Callable[[], T], timeout_seconds: float = TIMEOUT_SECONDS) -> T:
        """Run *function* in a forked child as this user, with / as working directory, and return its value.

        What it imports must be imported already: the user may not be able to read the source tree.

        Raises:
            ChildError: the child ended without a result, or with one that cannot be pickled.
            TimeoutError: no result in time; the child has been killed.
            BaseException: whatever *function* raised.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            self._run_child(function, writer)
        os.close(writer)
        try:
            data = _read_result(reader, pid, timeout_seconds)
        finally:
            os.close(reader)
            _, status = os.waitpid(pid, 0)
        if not data:
            raise ChildError(f"the child of uid {self.uid} ended with wait status {status} and without a result")
        returned, value = pickle.loads(data)
        if not returned:
            raise value
        result: T = value
        return result

    def connect(self, address: bytes | str, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
        """Return a socket of type *kind* that a process of this user has connected to *address*, a path or an abstract name.

        The kernel notes a peer's credentials at connect(2): the bus sees this user, and a process that has ended.
        """
        return user_connections(os.getpid()).connect((self.uid, self.gid, self.groups), address, kind, TIMEOUT_SECONDS)

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, stdin: str = "", timeout_seconds: float = TIMEOUT_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run *command* to its end as this user, in /, and return its status and output."""
        return subprocess.run(
            command_as(self, command),
            cwd="/",
            env=dict(env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, stderr: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start *command* as this user, in /, with pipes; the caller ends and waits for it."""
        return subprocess.Popen(
            command_as(self, command),
            cwd="/",
            env=dict(env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def _run_child(self, function: Callable[[], T], writer: int) -> None:
        """Become this user, run, send the result, and end the process: nothing of pytest may run in it."""
        try:
            try:
                os.setgroups(self.groups)
                os.setresgid(self.gid, self.gid, self.gid)
                os.setresuid(self.uid, self.uid, self.uid)
                os.chdir("/")
                result = _pack(True, function())
            except BaseException as error:  # the parent raises it
                result = _pack(False, error)
            with open(writer, "wb") as pipe:
                pipe.write(result)
        finally:
            os._exit(0)


def command_as(user: User | None, command: Sequence[str]) -> list[str]:
    """Return what runs *command* as *user*, or as the caller if that is None.

    subprocess could change the ids itself, but then it forks, which takes thirty milliseconds of processor time in a large pytest.
    """
    if user is None:
        return list(command)
    groups = f"--groups={','.join(map(str, user.groups))}" if user.groups else "--clear-groups"
    return ["/usr/bin/setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", groups, "--", *command]


FIRST = User(61_001, 61_001, (61_101, 61_100))
"""A test user, also in a group that the second is in: 61,100."""

SECOND = User(61_002, 61_002, (61_100,))
"""Another test user."""


def _pack(returned: bool, value: object) -> bytes:
    """Return the child's result as bytes; what cannot be pickled and unpickled is described."""
    try:
        data = pickle.dumps((returned, value))
        pickle.loads(data)
    except Exception:  # any class can fail to pickle in its own way
        text = "".join(traceback.format_exception(value)) if isinstance(value, BaseException) else repr(value)
        return pickle.dumps((False, ChildError(f"the child's result does not travel: {text}")))
    return data


def _read_result(reader: int, pid: int, timeout_seconds: float) -> bytes:
    """Return all that the child writes; kill it when it writes nothing in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([reader], [], [], timeout_seconds)
        if not ready:
            os.kill(pid, signal.SIGKILL)
            raise TimeoutError(f"process {pid} has not answered in {timeout_seconds} s")
        part = os.read(reader, 65_536)
        if not part:
            return b"".join(parts)
        parts.append(part)
