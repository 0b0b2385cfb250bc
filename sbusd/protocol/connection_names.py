"""Names that clients give to their connections: labels for people, which prove nothing. No I/O. Spec: sbus-protocol(7) §6, ``name``."""

from __future__ import annotations

from sbusd.protocol.errors import ErrorCode, ProtocolError

MAX_NAME_BYTES = 64
"""Longest name of a connection."""


def parse_name(payload: bytes) -> str:
    """Return the name of a connection in *payload*; empty for none.

    Raises:
        ProtocolError: EINVAL unless it is at most 64 bytes of printable UTF-8.
    """
    try:
        name = payload.decode()
    except UnicodeDecodeError:
        name = "\0"
    if len(payload) > MAX_NAME_BYTES or not name.isprintable():
        raise ProtocolError(ErrorCode.EINVAL, f"the name of a connection must be at most {MAX_NAME_BYTES} bytes of printable UTF-8")
    return name
