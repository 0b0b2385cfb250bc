"""sbus through nothing but a socket of the standard library."""

from __future__ import annotations

import socket
import time

from tests.bench.peers.clients.run import END, END_SECONDS, Supply, Tally, Trips

_HEAD = b"MSG bench/load\0"
_PATTERN = b"bench/load"
_BUFFER_BYTES = 4096


def _connect(address: str, *, subscribe: bool = False) -> socket.socket:
    """Connect, and wait until the bus has taken in what was said."""
    bus = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bus.connect(address)
    if subscribe:
        bus.send(b"SUB " + _PATTERN)
    bus.send(b"CMSG !/bus/ping\0")
    bus.recv(_BUFFER_BYTES)
    return bus


def publish(address: str, supply: Supply) -> None:
    """Send each message by itself."""
    bus = _connect(address)
    for payload in supply:
        bus.send(_HEAD + payload)
    supply.finish()
    while True:
        bus.send(_HEAD + END)
        time.sleep(END_SECONDS)


def receive(address: str, tally: Tally) -> None:
    """Take each message by itself."""
    bus = _connect(address, subscribe=True)
    tally.ready()
    while True:
        _, _, payload = bus.recv(_BUFFER_BYTES).partition(b"\0")
        tally.take(payload)


def trip(address: str, trips: Trips) -> None:
    """From one socket to another."""
    source, drain = _connect(address), _connect(address, subscribe=True)
    for payload in trips:
        source.send(_HEAD + payload)
        drain.recv(_BUFFER_BYTES)
