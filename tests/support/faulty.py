"""Batches as hostile clients make them: of any packets, and with faults behind them. Spec: sbus-protocol(7) §6, ``!/batch``."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from sbusd.protocol.batches import BATCH_HEAD

FAULTS = (b"\1", b"\0\0\0\0", b"\5\0\0\0MSG", b"\xff\xff\xff\xff", struct.pack("<I", 18) + b"CMSG !/batch\0" + bytes(5))
"""What no packet of a batch may be: half a length, no bytes, more than is there, a batch itself."""


def batch_of(packets: Iterable[bytes]) -> bytes:
    """Return a batch of packets, whatever they are."""
    return BATCH_HEAD + b"".join(struct.pack("<I", len(packet)) + packet for packet in packets)
