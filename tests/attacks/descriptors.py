"""Descriptors that a hostile user sends to the bus with SCM_RIGHTS, unix(7): the receiver may do their last close, and pay for it.

Each maker returns descriptors whose last close takes long, or that could stay open without end; the role closes its own copies, so that
what was sent is the last. Nothing here needs a privilege but the FUSE file system, see :mod:`tests.attacks.fuse`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from functools import cache

from sbus.protocol.packets import join_batch
from tests.attacks.attacker import AttackContext, Role
from tests.attacks.hostile import TIMEOUT_SECONDS, connect

MAX_IN_PACKET = 253
"""SCM_MAX_FD of the kernel."""

LINGER_SECONDS = 3_600
MEMORY_BYTES = 256 << 20
WATCHED = 2_000
NESTED = 3
"""Sockets within sockets: the kernel allows four levels in flight."""
RETRY_SECONDS = 0.01
KEPT = 1_000
"""How many descriptors whose other end must stay open are sent: a lingering socket without one has nothing to wait for."""

PACKET = b"MSG fds/x\0"
BATCH = join_batch([PACKET, PACKET])

Keep = list[object]
Make = Callable[[Keep], list[int]]
"""Returns descriptors, which the caller closes; what must stay open for them is added to the list."""


def lingering(keep: Keep) -> list[int]:
    """Return a TCP socket to ourselves that has unsent data, because its window is full: close(2) waits for LINGER_SECONDS, socket(7)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sender = socket.create_connection(listener.getsockname())
        keep.append(listener.accept()[0])
    sender.setblocking(False)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(65_536))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
    return [sender.detach()]


def large_memory(keep: Keep) -> list[int]:
    """Return a memory file whose pages its last close gives back."""
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC)
    part = bytes(1 << 20)
    for _ in range(MEMORY_BYTES // len(part)):
        os.write(fd, part)
    return [fd]


def watching(keep: Keep) -> list[int]:
    """Return an epoll instance that watches many descriptors, and one that watches it."""
    inner, outer = select.epoll(), select.epoll()
    for fd in _events():
        inner.register(fd, select.EPOLLIN | select.EPOLLET)
    outer.register(inner, select.EPOLLIN)
    with inner, outer:
        return [os.dup(outer.fileno()), os.dup(inner.fileno())]


@cache
def _events() -> tuple[int, ...]:
    """Return what epoll instances watch: open until the process ends, or they would watch it no more."""
    return tuple(os.eventfd(0) for _ in range(WATCHED))


def process(keep: Keep) -> list[int]:
    """Return a pidfd of our own process."""
    return [os.pidfd_open(os.getpid())]


def as_many_as_fit(keep: Keep) -> list[int]:
    """Return as many descriptors as fit into a packet."""
    return [os.eventfd(0) for _ in range(MAX_IN_PACKET)]


def holding(keep: Keep) -> list[int]:
    """Return a socket with unread packets that hold sockets with unread packets, and so on, and at the end descriptors."""
    inner = [os.eventfd(0) for _ in range(MAX_IN_PACKET // 4)]
    for _ in range(NESTED):
        outer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(outer, [b"x"], inner)
        for fd in inner:
            os.close(fd)
        inner = [reader.detach(), outer.detach()]
    return inner


def cycle(keep: Keep) -> list[int]:
    """Return the ends of a socket pair that hold each other: only the kernel's garbage collection of sockets can close them."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    socket.send_fds(left, [b"x"], [left.fileno(), right.fileno()])
    socket.send_fds(right, [b"x"], [left.fileno(), right.fileno()])
    return [left.detach(), right.detach()]


def sends(make: Make, packet: bytes = PACKET) -> Role:
    """Return a role that sends *packet* with what *make* returns, again and again, on one connection as long as that lives."""

    def run(context: AttackContext, keep: Keep) -> None:
        sock = connect(context.path)
        while len(keep) < KEPT:
            try:
                _send(sock, packet, make, keep)
            except ConnectionError:
                sock.close()
                time.sleep(RETRY_SECONDS)
                with contextlib.suppress(OSError):
                    sock = connect(context.path)
            context.count()
            context.begin()

    return _keeping(run)


def sends_and_closes(make: Make, held: int = 0) -> Role:
    """Return a role that connects, sends what *make* returns, and closes at once; it holds *held* other connections meanwhile.

    With as many as its quota allows, the bus turns each further one away without reading what it sent.
    """

    def run(context: AttackContext, keep: Keep) -> None:
        keep.append([connect(context.path) for _ in range(held)])
        while len(keep) < KEPT:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.settimeout(TIMEOUT_SECONDS)
                sock.connect(context.path)
                with contextlib.suppress(ConnectionError):
                    _send(sock, PACKET, make, keep)
            context.count()
            context.begin()

    return _keeping(run)


def _keeping(run: Callable[[AttackContext, Keep], None]) -> Role:
    """Return a role that goes on until the bus does not answer or the descriptors are used up, and then keeps what it has."""

    def role(context: AttackContext) -> None:
        keep: Keep = []
        try:
            run(context, keep)
        except OSError as error:
            # Later on, no descriptor may be left, or the bus may not answer. Before the first, there was no attack.
            if not context.has_acted:
                raise AssertionError(f"no descriptor was sent: {error}") from error
        context.begin()
        signal.pause()

    return role


def _send(sock: socket.socket, packet: bytes, make: Make, keep: Keep) -> None:
    """Send *packet* with new descriptors, or without them where the kernel refuses those, and close our copies.

    Raises:
        ConnectionError: the bus has closed the connection.
        TimeoutError: the bus does not read.
    """
    kept = len(keep)
    fds = make(keep)
    try:
        socket.send_fds(sock, [packet], fds)
    except OSError as error:
        do_not_linger(fds)
        del keep[kept:]
        # EPERM: the receiver does not take descriptors. ETOOMANYREFS: too many that were sent are still open.
        if error.errno not in (errno.EPERM, errno.ETOOMANYREFS):
            raise
        sock.send(packet)
    finally:
        for fd in fds:
            os.close(fd)


def do_not_linger(fds: list[int]) -> None:
    """Let our own close of what was not sent return at once."""
    for fd in fds:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
