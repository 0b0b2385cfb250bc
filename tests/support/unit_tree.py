"""Control groups like those that systemd makes for units, without systemd: a slice at the root, and units in it. Spec: cgroups(7)."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from tests.support import skips
from tests.support.users import User
from tests.support.wire import RawClient

_DESCRIPTORS = 4_096
"""More than a test has open."""

_REMOVE_SECONDS = 30.0
"""The timeout for killed processes."""


class UnitTree:
    """A slice of its own. Needs root. Call :meth:`remove` at the end."""

    def __init__(self) -> None:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        found = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
        skips.require(bool(found) and os.access(found[0], os.W_OK), "needs control groups of version 2", could_run=False)
        self.slice = f"sbustest{os.getpid()}_{time.monotonic_ns()}.slice"
        self.folder = found[0] / self.slice
        self.folder.mkdir()

    def unit(self, name: str, *, owner: User | None = None) -> Path:
        """Return the folder of a unit, or of a control group further below, which *owner* may change as if it were delegated."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        if owner is not None:
            for path in (folder, folder / "cgroup.procs", folder / "cgroup.subtree_control"):
                os.chown(path, owner.uid, owner.gid)
        return folder

    def remove(self) -> None:
        """Kill all processes in it, and remove it."""
        end = time.monotonic() + _REMOVE_SECONDS
        while self.folder.is_dir():
            with suppress(OSError):
                (self.folder / "cgroup.kill").write_text("1")
                # Depth first; what is still dying keeps its folder until the next round.
                for path, _, _ in os.walk(self.folder, topdown=False):
                    os.rmdir(path)
                return
            assert time.monotonic() < end, f"{self.folder} is still not empty"
            time.sleep(0.01)


class Connector:
    """A process in a control group that has connected a socket as a user, and lives until :meth:`end`. The test uses the socket."""

    def __init__(self, folder: Path, address: str, *, user: User | None = None) -> None:
        self._order, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self._live(folder, address, user, theirs)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(self._order, 1, 1)
        self.client = RawClient(socket.socket(fileno=fds[0]))

    @staticmethod
    def _live(folder: Path, address: str, user: User | None, order: socket.socket) -> None:
        """Run the process. Never returns."""
        try:
            # Of what the test has open, such as the sockets of other connectors, nothing may stay open here.
            os.closerange(3, order.fileno())
            os.closerange(order.fileno() + 1, _DESCRIPTORS)
            (folder / "cgroup.procs").write_text("0")
            if user is not None:
                os.setgroups(user.groups)
                os.setresgid(user.gid, user.gid, user.gid)
                os.setresuid(user.uid, user.uid, user.uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bus:
                bus.connect(address)
                socket.send_fds(order, [b"x"], [bus.fileno()])
            while where := order.recv(4096):
                (Path(os.fsdecode(where)) / "cgroup.procs").write_text("0")
                order.send(b"moved")
        finally:
            os._exit(0)

    def move(self, folder: Path) -> None:
        """Let the process move itself to another control group."""
        self._order.send(os.fsencode(folder))
        assert self._order.recv(16) == b"moved"

    def end(self) -> None:
        """End the process and wait until it has; the socket stays open. May be called twice."""
        if self.pid:
            self._order.send(b"")
            self._order.close()
            os.waitpid(self.pid, 0)
            self.pid = 0

    def close(self) -> None:
        """End the process, and close the socket."""
        self.end()
        self.client.close()
