"""Publishing to one connection alone; the user needs the right ``deliver``. Spec: sbus-protocol(7) §6, ``!/to/``."""

from __future__ import annotations

from functools import lru_cache

from sbus.errors import PayloadTooLarge
from sbus.protocol.direct_messages import direct_packet
from sbus.protocol.packets import MAX_PACKET_BYTES, publish_packet

_CACHED_HEADS = 1_024

_PLAIN = publish_packet(b"")


def direct_publication(to: int, packet: bytes) -> bytes:
    """Return the packet that publishes *packet*, a MSG or one in the name of others, to the connection with the number *to* alone.

    Raises:
        TypeError: *to* is not an int.
        ProtocolError: EINVAL if no connection has the number *to*.
        PayloadTooLarge: no bus accepts a packet of that size.
    """
    if type(to) is not int:
        raise TypeError(f"to must be the number of a connection, such as Peer.connection, not {type(to).__name__}")
    direct = _head(to) + packet
    if len(direct) > MAX_PACKET_BYTES:
        raise PayloadTooLarge(len(direct), MAX_PACKET_BYTES)
    return direct


@lru_cache(_CACHED_HEADS)
def _head(to: int) -> bytes:
    """Return the packet before the one in it. Raises ProtocolError if no connection has the number *to*."""
    return direct_packet(to, _PLAIN).removesuffix(_PLAIN)
