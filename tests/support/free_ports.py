"""TCP ports for servers that cannot choose one themselves."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket

_PORTS = itertools.count(10_000 + 3_000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
"""Ports below those that the kernel assigns to connections, and others in each worker."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is not in use, and that no connection gets."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port")
