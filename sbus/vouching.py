"""Publishing in the name of others, for services that pass messages on; the user of the service needs the right ``vouch``.

The *origin* of a message is ``<words>/<cred>``: ``!/host/alpha/!/cred/1000/1000/19211`` is a process of the host alpha. Recipients that
want senders get a :class:`~sbus.protocol.credentials.Peer` with this origin. Spec: sbus-protocol(7) §6, ``!/from/``.
"""

from __future__ import annotations

from functools import lru_cache

from sbus.direct_messages import direct_publication
from sbus.encoding import Data, publication
from sbus.errors import PayloadTooLarge
from sbus.protocol.packets import MAX_PACKET_BYTES, publish_packet
from sbus.protocol.vouching import vouched_packet

_CACHED_HEADS = 1_024

_PLAIN = publish_packet(b"")


def vouched_publication(origin: bytes, key: str | bytes, payload: Data = b"", *, to: int | None = None) -> bytes:
    """Return the packet that publishes *payload* under *key* in the name of *origin*. It can be a part of a batch.

    With *to*, only the connection with that number can get the message; the user of the service needs the right ``deliver`` too.

    Raises:
        PayloadTooLarge: no bus accepts a packet of that size.
        ProtocolError: EINVAL or EMSGSIZE if *origin* is malformed or too long; EINVAL if *key* has a NUL, or a str is not UTF-8;
            EINVAL if *to* is not the number of a connection.
    """
    packet = _head(origin) + publication(key, payload)
    if to is not None:
        return direct_publication(to, packet)
    if len(packet) > MAX_PACKET_BYTES:
        raise PayloadTooLarge(len(packet), MAX_PACKET_BYTES)
    return packet


@lru_cache(_CACHED_HEADS)
def _head(origin: bytes) -> bytes:
    """Return the packet before the MSG packet in it. Raises ProtocolError if *origin* is malformed or too long."""
    return vouched_packet(origin, _PLAIN).removesuffix(_PLAIN)
