"""A descriptor whose last close(2) sleeps: a TCP socket with unsent data and SO_LINGER, socket(7)."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator

from tests.support.wire import TIMEOUT_SECONDS

LINGER_SECONDS = 3_000
"""Longer than any test takes: the process that closes it last does not continue."""


def pass_on(sock: socket.socket, packet: bytes, fd: int, count: int = 1) -> None:
    """Send *packet* with *count* references to *fd*. Raises PermissionError where the kernel refuses them for the receiver."""
    sock.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * count))])


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process do nothing in this block: what is sent to it meanwhile it finds together."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def pass_on_lingering(sock: socket.socket, packet: bytes) -> socket.socket:
    """Send *packet* with a lingering socket, of which the receiver alone is left to do the last close; return its peer, to be kept open.

    The receiver must not be at work: else it may be the caller who does the last close, and sleeps.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(65_536))
    sock.setblocking(False)
    try:
        pass_on(sock, packet, sender.fileno())
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
    except BaseException:
        peer.close()
        raise
    finally:
        sender.close()
        sock.settimeout(TIMEOUT_SECONDS)
    return peer
