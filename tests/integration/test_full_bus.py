"""However many users fill a bus, a restart keeps all their connections, and a person with many ids has the quotas of one user."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import control_packet
from tests.support import skips
from tests.support.fdstore import Manager
from tests.support.wire import RawClient, error_code
from tools.stage import ROOT

LIMIT = 512
"""Descriptors of the bus. The kernel limits those in queues of a user to the same number, unless the user is root."""

BUS = 61_950
FIRST, IDS = 61_100, 80

_AS_THE_BUS = f"""
import ctypes, os, resource
libc = ctypes.CDLL(None, use_errno=True)
def done(status):
    if status:
        raise OSError(ctypes.get_errno(), "cannot prepare the bus")
done(libc.unshare(0x20000))
done(libc.mount(b"none", b"/", None, 0x44000, None))
done(libc.mount(os.environ["SUBUID"].encode(), b"/etc/subuid", None, 0x1000, None))
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
os.setgroups([])
os.setgid({BUS})
os.setuid({BUS})
"""
"""A mount namespace with a subuid(5) of its own, few descriptors, and a user without privileges."""


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Act as a user: this is what connect(2) tells the bus."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def admitted(manager: Manager, uid: int) -> RawClient | None:
    """Connect as a user, and return the client if the bus admits it."""
    with effective_user(uid):
        client = manager.client()
    with suppress(BrokenPipeError):
        client.send(control_packet(controls.WHOAMI))
    answer = client.receive()
    if answer.startswith(b"CMSG " + controls.WHOAMI):
        return client
    assert error_code(answer) == "EDQUOT"
    return None


@pytest.mark.parametrize("is_one_person", [False, True])
def test_a_restart_keeps_all_connections_of_many_ids(folder: Path, is_one_person: bool) -> None:
    skips.require_root()
    skips.require(Path("/etc/subuid").exists(), "needs /etc/subuid: install the package passwd", could_run=True)
    can_run = subprocess.run([sys.executable, "-c", "import sbusd"], cwd="/", env={"PYTHONPATH": str(ROOT)}, user=BUS, check=False)
    skips.require(can_run.returncode == 0, "needs a tree that every user can read", could_run=True)
    subuid = folder / "subuid"
    subuid.write_text(f"{FIRST}:{FIRST + 1}:{IDS}\n" if is_one_person else "")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4_096), hard))
    try:
        with Manager(folder, env={"SUBUID": str(subuid)}, prepare=_AS_THE_BUS) as manager:
            manager.start()
            clients: list[RawClient] = []
            for uid in range(FIRST, FIRST + IDS):
                while (client := admitted(manager, uid)) is not None:
                    clients.append(client)
            free = (LIMIT - 32) * 7 // 16
            assert len(clients) == free // 2 if is_one_person else free - 2 < len(clients) <= free
            assert admitted(manager, 0)
            for restart in (manager.reload, manager.restart):
                restart()
                for client in clients:
                    assert client.barrier() == []
            assert "cannot store a connection" not in manager.stderr
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
