"""What a caller may give as key, pattern and payload, as bytes of the wire."""

from __future__ import annotations

from sbusd.client.errors import PayloadTooLarge, ProtocolError
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.limits import MAX_PACKET_BYTES
from sbusd.protocol.packets import publish_packet, subscribe_packet


def to_bytes(text: str | bytes) -> bytes:
    """Return *text* as it is, or a str in UTF-8.

    Raises:
        ProtocolError: EINVAL if a str has surrogates, which stand for bytes that were not UTF-8: give the bytes.
    """
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(ErrorCode.EINVAL, f"{text[:24]!r} has a surrogate and is not text in UTF-8; give bytes instead") from error


def publication(key: str | bytes, payload: str | bytes) -> bytes:
    """Return the packet that publishes *payload* under *key*.

    Raises:
        PayloadTooLarge: no bus takes a packet of that size.
        ProtocolError: EINVAL if *key* has a NUL, or a str is not UTF-8.
    """
    try:
        return publish_packet(to_bytes(key), to_bytes(payload))
    except ProtocolError as error:
        if error.code is not ErrorCode.EMSGSIZE:
            raise
        size = len(b"MSG \0") + len(to_bytes(key)) + len(to_bytes(payload))
        raise PayloadTooLarge(size, MAX_PACKET_BYTES) from error


def pattern_list(patterns: tuple[str | bytes, ...]) -> list[bytes]:
    """Return the patterns of one subscription.

    Raises:
        ValueError: there is none; the pattern that takes everything is the empty one.
        ProtocolError: EINVAL if one has a NUL, or a str is not UTF-8.
    """
    if not patterns:
        raise ValueError("a subscription wants at least one pattern; the empty one, b'', takes every key that is not reserved")
    encoded = [to_bytes(pattern) for pattern in patterns]
    for pattern in encoded:
        subscribe_packet(pattern)
    return encoded
