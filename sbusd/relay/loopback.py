"""Who connected over loopback: the kernel's table of TCP sockets knows each one's user. Spec: proc_pid_net(5), proc(5).

Without keys or certificates nobody says who he is; then the relay serves root and its own user alone. Any other user of this host
could else forge requests and answers of every twin.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

TABLES = {4: Path("/proc/self/net/tcp"), 6: Path("/proc/self/net/tcp6")}


def is_trusted(client: tuple[str, int], server: tuple[str, int], tables: dict[int, Path] | None = None) -> bool:
    """Return whether the socket *client* that is connected to *server*, both on this host, is of root or of this process's user."""
    return socket_user(client, server, TABLES if tables is None else tables) in {0, os.geteuid()}


def socket_user(local: tuple[str, int], remote: tuple[str, int], tables: dict[int, Path]) -> int | None:
    """Return the uid of the socket that is bound to *local* and connected to *remote*, None if there is none."""
    table = tables[ipaddress.ip_address(local[0]).version]
    wanted = [_spelled(local), _spelled(remote)]
    try:
        lines = table.read_text("ascii").splitlines()[1:]
    except OSError:
        return None
    return next((int(words[7]) for words in map(str.split, lines) if words[1:3] == wanted), None)


def _spelled(address: tuple[str, int]) -> str:
    """Return an address as the table has it: words of 32 bits in the machine's order, in hexadecimal."""
    packed = ipaddress.ip_address(address[0]).packed
    words = [packed[i : i + 4] for i in range(0, len(packed), 4)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return f"{b''.join(words).hex().upper()}:{address[1]:04X}"
