"""Batches of hostile clients: any packets, followed by malformed ones. Spec: sbus-protocol(7) §6, ``!/batch``."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from sbus.protocol.packets import BATCH_HEAD

FAULTS = (b"\1", b"\0\0\0\0", b"\5\0\0\0MSG", b"\xff\xff\xff\xff", struct.pack("<I", 18) + b"CMSG !/batch\0" + bytes(5))
"""Malformed packets of a batch: a truncated length, length 0, a length beyond the end, a nested batch."""


def batch_of(packets: Iterable[bytes]) -> bytes:
    """Return a batch of any packets."""
    return BATCH_HEAD + b"".join(struct.pack("<I", len(packet)) + packet for packet in packets)
