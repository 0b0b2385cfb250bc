"""Services for tests on a real bus, each in a process of its own, so that it can be another user's and be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sbusd.client import Allow, Bus, Request, Twins
from tests.support.users import User


@dataclass
class Server:
    """A service in a process of its own."""

    pid: int

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def serving(
    path: str,
    user: User | None = None,
    allow: Allow | None = None,
    twins: Twins | None = None,
    **handlers: Callable[[Request], bytes | str | None],
) -> Iterator[Server]:
    """Serve in a forked process, as *user*, from when callers find it until the end of the block."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            if user is not None:
                os.setgroups(user.groups)
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
            with Bus.connect(path) as bus:
                for command, handler in handlers.items():
                    bus.service(command, allow=allow, twins=twins)(handler)
                bus.serve(ready=partial(_tell, writer))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x", "the service did not begin"
        yield Server(pid)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _tell(writer: int) -> None:
    """Say that callers find the service."""
    os.write(writer, b"x")
