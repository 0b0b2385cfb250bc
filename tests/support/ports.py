"""The listening sockets of a process, and its replies to an unauthenticated client."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

_LISTENS = "0A"
_TIMEOUT_SECONDS = 20.0
_RESET = frozenset({errno.ENOTCONN, errno.EPIPE, errno.ECONNRESET})  # by the server, before all was sent or the end of it said


def listening(pid: int) -> list[tuple[str, int]]:
    """Return address and port of each TCP socket on which the process *pid* listens: the address in hex, as proc(5) has it."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(os.readlink(fd))
        except FileNotFoundError:  # closed meanwhile
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and f"socket:[{inode}]" in inodes:
                address, _, port = local.partition(":")
                found.append((address, int(port, 16)))
    return found


def answers_to_another_user(port: int) -> tuple[bytes, bytes]:
    """Send what Spark's servers read as a request, and what Py4J's reads as a command; return what the one at 127.0.0.1 says to each."""
    body = b"another user\n"
    request = struct.pack(">QBQI", 8 + 1 + 8 + 4 + len(body), 3, 7, len(body)) + body
    return _answer(port, request), _answer(port, b"c\nz:java.lang.Runtime\ngetRuntime\ne\n")


def _answer(port: int, packet: bytes) -> bytes:
    """Return the beginning of what a server says to *packet*; nothing if it closes without a word, or waits for the rest of something.

    A server of Spark for one result accepts one connection: a second one is neither answered nor closed until that result is read.
    Py4J's server resets the connection right after its answer, maybe before this function goes on: the answer can still be read.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS) as probe:
        try:
            probe.sendall(packet)
            probe.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in _RESET:
                raise
        try:
            return probe.recv(1 << 16)
        except (TimeoutError, ConnectionError):
            return b""
