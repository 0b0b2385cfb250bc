"""Reading in the model: which packets of a client are handled now, and which of a batch. Rules 1 and 8 of sbusd/dataplane/contract.py."""

from __future__ import annotations

import contextlib
from collections import Counter

from sbus.protocol.direct_messages import parse_direct
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, parse_batch
from sbus.protocol.vouching import parse_vouched
from tests.oracle.connection import READ_PACKETS, Connection
from tests.oracle.flow import FlowControl
from tests.oracle.link import Received, Stream

FEW_PACKETS = 2
"""Packets after which a read looks whether there are bytes, before it goes on."""


def next_batch(connection: Connection, limit: int, flow: FlowControl, count: Counter[str]) -> list[Received]:
    """Return at most *limit* packets that are handled now: what was read before, else what the client has sent since."""
    if connection.unread:
        return _take(connection, limit, count)
    connection.unread = _read(connection, min(limit, connection.reads))
    batch = _take(connection, limit, count)
    if connection.unread:
        connection.reads = 1
        flow.charge_unread(connection)
    elif batch:
        connection.reads = min(connection.reads * 2, READ_PACKETS)
    return batch


def _read(connection: Connection, limit: int) -> list[Received]:
    """Read at most *limit* packets, a batch counted as one. Notes the end of the client's packets."""
    packets: list[Received] = []
    while len(packets) < limit:
        if len(packets) == FEW_PACKETS and not connection.link.is_stream and not connection.link.has_more():
            break  # the end comes with the next read
        match connection.link.read():
            case Received() as packet:
                packets.append(packet)
                continue
            case Stream.SHUT if not connection.out.is_broken:
                connection.is_reading = False
                connection.update_watch()
            case Stream.SHUT | Stream.CLOSED:
                connection.is_at_end = True
            case Stream.EMPTY:
                pass
        break
    return packets


def _take(connection: Connection, limit: int, count: Counter[str]) -> list[Received]:
    """Take at most *limit* packets of what was read; of a batch what is in it."""
    taken: list[Received] = []
    while connection.unread and len(taken) < limit:
        packet = connection.unread.pop(0)
        if packet.is_cut or not packet.data.startswith(BATCH_HEAD):
            taken.append(packet)
            continue
        inner, rest = _split(packet.data, limit - len(taken))
        taken += inner
        if rest:
            connection.unread.insert(0, Received(rest))
            break
        count["received_batches"] += 1
    return taken


def _split(batch: bytes, limit: int) -> tuple[list[Received], bytes]:
    """Return at most *limit* packets of a batch, and the rest as a batch, or nothing.

    A fault is for the sink, as a batch that begins with it: next time, if there are packets in front of it.
    """
    taken: list[Received] = []
    place, inside = len(BATCH_HEAD), parse_batch(batch)
    while len(taken) < limit:
        try:
            inner = next(inside, None)
        except ProtocolError:
            if not taken:
                return [Received(batch)], b""
            break
        if inner is None:
            return taken, b""
        taken.append(Received(inner))
        place += LENGTH_BYTES + len(inner)
    return taken, BATCH_HEAD + batch[place:] if place < len(batch) else b""


def unwrapped(sender: Connection, packet: Received) -> tuple[int, bytes, bytes]:
    """Return the only recipient (0: all), the origin (empty: its sender) and the message in a packet; or 0, no origin and the packet."""
    to, inner = 0, packet.data
    with contextlib.suppress(ProtocolError):
        if sender.may_deliver and not packet.is_cut:
            to, inner = parse_direct(packet.data)
    if inner.startswith(b"MSG "):
        return to, b"", inner
    with contextlib.suppress(ProtocolError):
        if sender.may_vouch and not packet.is_cut:
            return to, *parse_vouched(inner)
    return 0, b"", packet.data
