"""Messages for which a client vouches: ``CMSG !/from/<words>/<cred> NUL <the MSG packet>``. Spec: sbus-protocol(7) §6.

The *origin* is ``<words>/<cred>``: where the message comes from, as the vouching client says. ``<cred>`` has the form of the response to
``!/cred/whoami``, such as ``!/cred/1000/1000/19211``. The words must not begin like credentials: after those of the vouching client, they
would look like its own.
"""

from __future__ import annotations

import re

from sbus.protocol import controls
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES

MAX_ORIGIN_BYTES = 512
"""Longest origin: the names of four hosts, each with credentials."""

MAX_LOST_PATTERNS = 64
"""Patterns in one report of a loss. So its cost is that of a message to their subscribers."""

MAX_LOST_COUNT = 10**15 - 1
"""Largest reported number of lost messages: every JSON reader knows it exactly."""

VOUCHED_HEAD = b"CMSG " + controls.FROM
"""The beginning of a packet for which a client vouches."""

_ORIGIN = re.compile(rb"(?!!/cred/)[!#-\[\]-~]+/!/cred/[0-9]{1,10}/[0-9]{1,10}/[0-9]{1,10}")

_COUNT = re.compile(rb"[0-9]{1,15}")


def vouched_packet(origin: bytes, packet: bytes) -> bytes:
    """Return the packet with which a client vouches that *packet*, a MSG, comes from *origin*.

    Raises:
        ProtocolError: EINVAL if *origin* or *packet* is malformed; EMSGSIZE if one of them is too long.
    """
    check_vouched(origin, packet)
    vouched = b"%b%b\0%b" % (VOUCHED_HEAD, origin, packet)
    if len(vouched) > MAX_PACKET_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"packet too long: {len(vouched)} bytes, at most {MAX_PACKET_BYTES} are allowed")
    return vouched


def check_vouched(origin: bytes, packet: bytes | None) -> None:
    """Check what a client vouches for.

    Raises:
        ProtocolError: EMSGSIZE if *origin* is too long; EINVAL if it is malformed, or if *packet* is not a MSG.
    """
    if len(origin) > MAX_ORIGIN_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"the origin of the message has {len(origin)} bytes, at most {MAX_ORIGIN_BYTES} are valid")
    if not _ORIGIN.fullmatch(origin):
        raise ProtocolError(ErrorCode.EINVAL, 'the origin must be <words>/!/cred/<gid>/<uid>/<pid> in visible ASCII without " and \\')
    if packet is None or not packet.startswith(b"MSG ") or b"\0" not in packet:
        raise ProtocolError(ErrorCode.EINVAL, "after the origin and its NUL there must be a MSG packet")


def parse_vouched(packet: bytes) -> tuple[bytes, bytes]:
    """Return the origin and the MSG packet in *packet*, for which a client vouches.

    Raises:
        ProtocolError: EINVAL if it is malformed; EMSGSIZE if the origin is too long.
    """
    head, nul, inner = packet.partition(b"\0")
    if not head.startswith(VOUCHED_HEAD):
        raise ProtocolError(ErrorCode.EINVAL, "the packet does not begin with CMSG !/from/")
    origin = head.removeprefix(VOUCHED_HEAD)
    check_vouched(origin, inner if nul else None)
    return origin, inner


def loss_payload(count: int, patterns: list[bytes]) -> bytes:
    """Return the payload of ``lost/for``: *count* messages, 0 if unknown, that match *patterns* are lost.

    Raises:
        ProtocolError: EINVAL if *count* or the number of patterns is out of range, or a pattern has a NUL.
    """
    if any(b"\0" in pattern for pattern in patterns):
        raise ProtocolError(ErrorCode.EINVAL, "a pattern contains a NUL byte")
    payload = b"\0".join([b"%d" % count, *patterns])
    parse_loss(payload)
    return payload


def parse_loss(payload: bytes) -> tuple[int, list[bytes]]:
    """Return the count and the patterns in the payload of ``lost/for``. Raises ProtocolError (EINVAL) if it is malformed."""
    digits, *patterns = payload.split(b"\0", MAX_LOST_PATTERNS + 1)
    if not _COUNT.fullmatch(digits):
        raise ProtocolError(ErrorCode.EINVAL, f"the number of lost messages must have 1 to {len(str(MAX_LOST_COUNT))} digits")
    if not 1 <= len(patterns) <= MAX_LOST_PATTERNS:
        raise ProtocolError(ErrorCode.EINVAL, f"a report of a loss must have 1 to {MAX_LOST_PATTERNS} patterns")
    return int(digits), patterns
