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


def send_burst(bus: Daemon) -> None:
    """Have a new client send all packets while the bus is stopped, so that all are there at once, and wait until it has read them."""
    client = bus.client()
    client.socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * PACKETS * PACKET_BYTES)
    client.barrier()
    os.kill(bus.pid, signal.SIGSTOP)
    try:
        for _ in range(PACKETS):
            client.publish(b"burst", bytes(PACKET_BYTES))
    finally:
        os.kill(bus.pid, signal.SIGCONT)
    assert client.barrier() == []
    client.close()


def test_memory_of_a_burst_is_returned_when_the_bus_is_idle(bus: Daemon) -> None:
    skips.require_root()  # only root may have a socket that holds the burst
    bus.client().barrier()
    before, whole = memory_bytes(bus, "RssAnon"), memory_bytes(bus, "VmHWM")
    end = time.monotonic() + TIMEOUT_SECONDS
    # A bus that was kept from running takes its clients for costly, reads the packets a few at a time, and needs no memory for all of them.
    while memory_bytes(bus, "VmHWM") < whole + PACKETS * PACKET_BYTES // 2:
        assert time.monotonic() < end, "the bus never took a burst at once"
        send_burst(bus)
    while memory_bytes(bus, "RssAnon") > before + PACKETS * PACKET_BYTES // 4:
        assert time.monotonic() < end, "the bus keeps what the burst took"
        time.sleep(0.05)
