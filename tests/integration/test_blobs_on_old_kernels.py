"""Linux before 6.16 cannot refuse descriptors on connections that sbus-blob has not accepted: what a user whose close hangs can then do."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sbus_services.blob.service import PAUSING_PART, SPARE_DESCRIPTORS
from tests.attacks.attacker import Attackers
from tests.attacks.dirty_files import LeavesDirtyFile
from tests.attacks.filesystems import why_no_fuse
from tests.support.blob_programs import BlobClient, BlobProgram
from tests.support.daemons import Daemon
from tests.support.kernels import old_kernel
from tests.support.lingering import stopped
from tests.support.relays import wait_for
from tests.support.skips import require
from tests.support.users import FIRST, SECOND

pytestmark = pytest.mark.usefixtures("needs_root")

ROOM = 480

ROUNDS, FLOOD = 4, 60
"""Together as many connections as stop the service."""

_FULL = (errno.ETOOMANYREFS, errno.EAGAIN)
"""The kernel permits the user no more unread descriptors, or the queue of the listening socket is full."""


@pytest.fixture
def service(bus: Daemon, folder: Path) -> Iterator[BlobProgram]:
    require(not (reason := why_no_fuse()), reason, could_run=False)
    with BlobProgram(folder, bus.path, max_descriptors=SPARE_DESCRIPTORS + ROOM, env=old_kernel(folder)) as program:
        yield program


def leave(address: str, fd: int) -> socket.socket:
    """Leave *fd* in a connection that the service ends without reading it."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(address)
    sock.send(b"{")
    socket.send_fds(sock, [b"x"], [fd])
    return sock


@contextlib.contextmanager
def hanging(service: BlobProgram) -> Iterator[None]:
    """Let a close of FIRST hang in this block."""
    with stopped(service.pid):
        attackers = Attackers(service.address, [LeavesDirtyFile(leave)], FIRST, None, is_urgent=True)
    try:
        wait_for(lambda: "has not been closed for" in _answer(service), "the user to be refused")
        yield
    finally:
        attackers.stop()


def flood(service: BlobProgram, limit: int) -> int:
    """Let FIRST, with *limit* descriptors, leave one in each of FLOOD connections. Return in how many that was possible."""

    def run() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        for count in range(FLOOD):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.setblocking(False)
                try:
                    sock.connect(service.address)
                    socket.send_fds(sock, [b"x"], [0])
                except OSError as error:
                    if error.errno in _FULL:
                        return count
                    raise
        return FLOOD

    with stopped(service.pid):  # else the service could end a connection before the descriptor is there
        return FIRST.call(run)


def closes(watcher: BlobClient) -> int:
    """Return how many descriptors of all users wait to be closed."""
    return int(watcher.request("stats")[0]["total"]["closes"])


def test_a_low_limit_of_descriptors_keeps_a_user_from_stopping_the_service(service: BlobProgram) -> None:
    """sbus-blob(8), SECURITY: the kernel limits the unread descriptors of a user."""
    limit = ROOM // PAUSING_PART // 2
    with service.client() as watcher, hanging(service):
        before = closes(watcher)
        left = 0
        for _ in range(ROUNDS):
            left += flood(service, limit)
            wait_for(partial(_has_closes, watcher, before + left), "the connections to be accepted")
            service.check_others(SECOND)
        assert left == limit + 1
    assert "paused accepting" not in service.log


def test_without_one_no_connection_is_accepted_until_the_close_returns(service: BlobProgram) -> None:
    """sbus-blob(8), SECURITY. Existing connections are served."""
    with service.client() as watcher, service.client(SECOND) as client:
        with hanging(service):
            wait_for(lambda: flood(service, 10 * ROOM) < FLOOD and closes(watcher) == ROOM // PAUSING_PART, "half of the room to be taken")
            half = ROOM // PAUSING_PART
            record = f"{half} descriptors of clients wait to be closed, {half} of them of user {FIRST.uid}"
            wait_for(lambda: record in service.log, "a record that names the user")
            client.put(b"x")
        service.check_others(SECOND)


def _has_closes(watcher: BlobClient, count: int) -> bool:
    """Return whether *count* descriptors wait to be closed."""
    return closes(watcher) == count


def _answer(service: BlobProgram) -> str:
    """Return the reason of a refusal of FIRST, if there is one."""
    with contextlib.suppress(OSError, EOFError), service.client(FIRST) as client:
        client.socket.settimeout(1)
        with contextlib.suppress(OSError):  # it may be refused already
            client.send(b'{"request":"stats"}')
        return str(client.receive()[0].get("reason", ""))
    return ""
