"""A burst of large packets takes memory, and the bus gives it back when nothing more comes."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from tests.support import skips
from tests.support.daemons import Daemon

TIMEOUT_SECONDS = 60.0
PACKETS, PACKET_BYTES = 64, 100_000
_SO_SNDBUFFORCE = 32  # <asm-generic/socket.h>; Python has no name for it


def memory_bytes(bus: Daemon, field: str) -> int:
    """Return a field of /proc/PID/status that is in kB. Source: proc(5)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{bus.pid}/status").read_text().splitlines())
    return int(status[field].split()[0]) << 10


def test_what_a_burst_took_is_given_back_when_nothing_comes(bus: Daemon) -> None:
    skips.require_root()  # only root may have a socket that holds the burst
    client = bus.client()
    client.socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * PACKETS * PACKET_BYTES)
    client.barrier()
    before = memory_bytes(bus, "RssAnon")
    os.kill(bus.pid, signal.SIGSTOP)  # so that all of them are there at once
    try:
        for _ in range(PACKETS):
            client.publish(b"burst", bytes(PACKET_BYTES))
    finally:
        os.kill(bus.pid, signal.SIGCONT)
    assert client.barrier() == []
    assert memory_bytes(bus, "VmHWM") > memory_bytes(bus, "RssFile") + before + PACKETS * PACKET_BYTES // 2
    end = time.monotonic() + TIMEOUT_SECONDS
    while memory_bytes(bus, "RssAnon") > before + PACKETS * PACKET_BYTES // 4:
        assert time.monotonic() < end, "the bus keeps what the burst took"
        time.sleep(0.05)
