"""Descriptors that the peers of Unix sockets send, SCM_RIGHTS in unix(7): whether they may, and whether they have."""

from __future__ import annotations

import contextlib
import socket

_SO_PASSRIGHTS = 83
"""Whether descriptors may be sent to a socket, since Linux 6.16."""


def let_send_descriptors(sock: socket.socket, *, is_allowed: bool) -> None:
    """Set whether the peer of *sock* can send descriptors; of a listening socket, whether clients can that connect from now on.

    Linux before 6.16 always lets them.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, is_allowed)


def unread_descriptors(sock: socket.socket) -> int:
    """Return the number of descriptors in unread packets of *sock*; -1 if the kernel does not report it (before Linux 5.7)."""
    try:
        with open(f"/proc/self/fdinfo/{sock.fileno()}", encoding="ascii") as info:
            counts = [line.partition(":")[2] for line in info if line.startswith("scm_fds:")]
    except OSError:
        return -1
    return int(counts[0]) if counts else -1
