"""Direct messages, which go to one connection alone: ``CMSG !/to/<id> NUL <packet>``. Spec: sbus-protocol(7) §6.

``<packet>`` is a MSG, or one for which the client vouches, as in :mod:`sbus.protocol.vouching`.
"""

from __future__ import annotations

import re

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.protocol.vouching import VOUCHED_HEAD, parse_vouched

MAX_NUMBER_DIGITS = 18
"""Most digits of the number of a connection. So it is an integer of 64 bits with a sign, as in the record."""

_HEAD = b"CMSG " + controls.TO

_NUMBER = re.compile(rb"[1-9][0-9]{0,%d}" % (MAX_NUMBER_DIGITS - 1))


def direct_packet(connection: int, packet: bytes) -> bytes:
    """Return the packet that sends *packet*, a MSG or one for which the client vouches, to *connection* alone.

    Raises:
        ProtocolError: EINVAL if one of them is malformed; EMSGSIZE if the result is longer than a packet.
    """
    number = b"%d" % connection
    check_direct(number, packet)
    direct = b"%b%b\0%b" % (_HEAD, number, packet)
    if len(direct) > MAX_PACKET_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"packet too long: {len(direct)} bytes, at most {MAX_PACKET_BYTES} are allowed")
    return direct


def check_direct(number: bytes, packet: bytes | None) -> None:
    """Check the recipient and the content of a direct message.

    Raises:
        ProtocolError: EINVAL if *number* is not that of a connection, or if *packet* is neither a MSG nor a well-formed one for which a
            client vouches; EMSGSIZE if the origin of the latter is too long.
    """
    if not _NUMBER.fullmatch(number):
        words = f"the number of the recipient must be decimal, from 1, without leading zeros and with at most {MAX_NUMBER_DIGITS} digits"
        raise ProtocolError(ErrorCode.EINVAL, words)
    if packet is not None and packet.startswith(VOUCHED_HEAD):
        parse_vouched(packet)
    elif packet is None or not packet.startswith(b"MSG ") or b"\0" not in packet:
        raise ProtocolError(ErrorCode.EINVAL, "after the number of the recipient and its NUL there must be a MSG packet, or CMSG !/from/")


def parse_direct(packet: bytes) -> tuple[int, bytes]:
    """Return the recipient and the content of a direct message. Raises what :func:`check_direct` raises."""
    head, nul, inner = packet.partition(b"\0")
    if not head.startswith(_HEAD):
        raise ProtocolError(ErrorCode.EINVAL, "the packet does not begin with CMSG !/to/")
    number = head.removeprefix(_HEAD)
    check_direct(number, inner if nul else None)
    return int(number), inner
