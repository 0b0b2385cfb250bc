"""A bad cable: a program that passes frames between two interfaces, and delays, drops and reorders them.

tc-netem(8) does the same, but many kernels lack it. Run in the namespace of both interfaces, as root:
``python -m tests.faults.link.lossy_cable FIRST SECOND --delay 0.02 --jitter 0.01 --loss 0.02 --reorder 0.05 --seed 1``.
It ends by SIGTERM. :func:`complete_checksums` has to be called for the interfaces of all hosts before.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import random
import select
import socket
import struct
import time
from dataclasses import dataclass

_SIOCETHTOOL = 0x8946
_ETHTOOL_SETTERS = (0x17, 0x1F, 0x24)
"""ETHTOOL_STXCSUM, ETHTOOL_STSO, ETHTOOL_SGSO."""

_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP = 1
_PACKET_MR_PROMISC = 1
_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_MAX_FRAME_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Impairment:
    """What happens to frames: a delay of ``delay`` plus up to ``jitter`` seconds, and parts of them that are lost or sent at once."""

    delay: float
    jitter: float
    loss: float
    reorder: float

    def options(self) -> list[str]:
        """Return the options of the program."""
        return [f"--{name}={getattr(self, name)}" for name in ("delay", "jitter", "loss", "reorder")]


def complete_checksums(interface: str) -> None:
    """Let the kernel complete checksums, and segment, before a frame reaches *interface*, in the namespace of the caller.

    Between virtual interfaces it leaves that out, and a program that copies such a frame would copy an invalid one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in _ETHTOOL_SETTERS:
            value = ctypes.create_string_buffer(struct.pack("=II", command, 0))
            fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def pass_frames(first: str, second: str, impairment: Impairment, seed: int) -> None:
    """Pass frames in both directions, without end."""
    draw = random.Random(seed)
    ends = _open(first), _open(second)
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select(ends, [], [], timeout)
        for end in ready:
            frame, address = end.recvfrom(_MAX_FRAME_BYTES)
            if address[2] == _PACKET_OUTGOING or draw.random() < impairment.loss:
                continue
            delay = 0.0 if draw.random() < impairment.reorder else impairment.delay + draw.random() * impairment.jitter
            number += 1
            heapq.heappush(waiting, (time.monotonic() + delay, number, ends.index(end), frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, source, frame = heapq.heappop(waiting)
            try:
                ends[1 - source].send(frame)
            except OSError:  # the interface is down, or its queue is full: one more lost frame
                continue


def _open(interface: str) -> socket.socket:
    """Return a socket for all frames of *interface*."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    end.bind((interface, 0))
    membership = struct.pack("iHH8s", socket.if_nametoindex(interface), _PACKET_MR_PROMISC, 0, b"")
    end.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, membership)
    return end


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="lossy_cable", description="Pass frames between two interfaces, badly.")
    parser.add_argument("first")
    parser.add_argument("second")
    for name in ("delay", "jitter", "loss", "reorder"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for interface in (options.first, options.second):
        complete_checksums(interface)
    impairment = Impairment(options.delay, options.jitter, options.loss, options.reorder)
    print("ready", flush=True)
    pass_frames(options.first, options.second, impairment, options.seed)


if __name__ == "__main__":
    main()
