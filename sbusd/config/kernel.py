"""What a configuration needs of the kernel. Source: unix(7)."""

from __future__ import annotations

import os
import socket

_SO_PEERPIDFD = 77
"""On every architecture of Linux but SPARC and PA-RISC."""

_PIDFD_BYTES = 4


def reports_processes() -> bool:
    """Return whether the kernel says which process has connected to a socket, SO_PEERPIDFD: since Linux 6.5."""
    own, other = socket.socketpair()
    with own, other:
        try:
            pidfd = own.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _PIDFD_BYTES)
        except OSError:
            return False
    os.close(int.from_bytes(pidfd, "little"))
    return True
