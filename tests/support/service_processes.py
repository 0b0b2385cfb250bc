"""Services for tests on a real bus, each in its own process, which can run as another user and be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from sbus import Allow, Bus, Request, Twins
from sbus.protocol.memberships import SERVICE_GROUP
from tests.support.users import User


@dataclass
class ServiceProcess:
    """A service in its own process."""

    pid: int

    def kill(self) -> None:
        """Kill it."""
        os.kill(self.pid, signal.SIGKILL)


@contextmanager
def running_service(
    path: str,
    user: User | None = None,
    allow: Allow | None = None,
    twins: Twins | None = None,
    group: str = SERVICE_GROUP,
    **handlers: Callable[[Request], Any],
) -> Iterator[ServiceProcess]:
    """Run a service in a forked process, as *user*; callers can reach it until the end of the context."""
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
                    bus.service(command, allow=allow, twins=twins, group=group)(handler)
                bus.serve(ready=partial(_tell, writer))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        assert os.read(reader, 1) == b"x", "the service did not begin"
        yield ServiceProcess(pid)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _tell(writer: int) -> None:
    """Report that callers can reach the service."""
    os.write(writer, b"x")
