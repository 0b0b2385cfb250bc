"""The kernel's table of sockets says whose a loopback connection is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sbusd.relay.loopback import TABLES, is_trusted, socket_user


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_user_of_a_real_connection(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server, socket.create_connection(server.getsockname()[:2]) as client:
        ours, theirs = client.getsockname()[:2], server.getsockname()[:2]
        assert socket_user(ours, theirs, TABLES) == os.geteuid()
        assert is_trusted(ours, theirs)
        assert socket_user((host, 1), theirs, TABLES) is None


def test_the_table_as_the_kernel_writes_it(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F73 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1\n"
        "   1: 0100007F:C350 0100007F:1F73 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0 20 4 30 10 -1\n"
    )
    assert socket_user(("127.0.0.1", 50_000), ("127.0.0.1", 8_051), {4: table}) == 1_000
    assert not is_trusted(("127.0.0.1", 50_000), ("127.0.0.1", 8_051), {4: table})
    assert not is_trusted(("127.0.0.1", 50_001), ("127.0.0.1", 8_051), {4: table})


def test_who_cannot_be_looked_up_is_not_trusted(tmp_path: Path) -> None:
    assert not is_trusted(("127.0.0.1", 1), ("127.0.0.1", 2), {4: tmp_path / "none"})
