"""Encodes keys, patterns and payloads of a program as bytes of the wire."""

from __future__ import annotations

from functools import lru_cache

from sbusd.client.errors import PayloadTooLarge, ProtocolError
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.keys import MAX_KEY_BYTES
from sbusd.protocol.packets import MAX_PACKET_BYTES, publish_packet, subscribe_packet

_CACHED_HEADS = 512
"""Keys whose packet head is cached: most programs publish to few keys. With keys of the greatest cached length, which is the default
maximum of a bus, that is 4 MiB."""


def to_bytes(text: str | bytes) -> bytes:
    """Return *text* as it is, or a str in UTF-8.

    Raises:
        ProtocolError: EINVAL if a str has surrogates, which represent bytes that are not UTF-8: give bytes instead.
    """
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid text {text[:24]!r}: contains a surrogate; give bytes instead") from error


def publication(key: str | bytes, payload: str | bytes) -> bytes:
    """Return the packet that publishes *payload* under *key*.

    Raises:
        PayloadTooLarge: no bus accepts a packet of that size.
        ProtocolError: EINVAL if *key* has a NUL, or a str is not UTF-8.
    """
    if len(key) > MAX_KEY_BYTES:
        return _long_publication(to_bytes(key), to_bytes(payload))
    head = _head(key) if isinstance(key, bytes) else _head_of_text(key)
    packet = head + (payload if isinstance(payload, bytes) else to_bytes(payload))
    if len(packet) > MAX_PACKET_BYTES:
        raise PayloadTooLarge(len(packet), MAX_PACKET_BYTES)
    return packet


def _long_publication(key: bytes, payload: bytes) -> bytes:
    """Do as :func:`publication` for a key that is too long for the cache."""
    try:
        return publish_packet(key, payload)
    except ProtocolError as error:
        if error.code is not ErrorCode.EMSGSIZE:
            raise
        raise PayloadTooLarge(len(b"MSG \0") + len(key) + len(payload), MAX_PACKET_BYTES) from error


@lru_cache(_CACHED_HEADS)
def _head(key: bytes) -> bytes:
    """Return the packet before its payload. Raises ProtocolError if *key* has a NUL."""
    return publish_packet(key)


@lru_cache(_CACHED_HEADS)
def _head_of_text(key: str) -> bytes:
    """Do as :func:`_head`, in a separate cache: ``python -b`` warns if text and bytes are compared.

    Raises:
        ProtocolError: *key* has a NUL or a surrogate.
    """
    return publish_packet(to_bytes(key))


def control_key(key: str | bytes) -> bytes:
    """Return the key of a control message that a program may send.

    Raises:
        ProtocolError: EINVAL if a str is not UTF-8, or if it is the key of a batch: only ``outgoing`` makes batches, in order.
    """
    name = to_bytes(key)
    if name == controls.BATCH:
        raise ProtocolError(ErrorCode.EINVAL, "cannot send a batch as a control message: use coalesce()")
    return name


def pattern_list(patterns: tuple[str | bytes, ...]) -> list[bytes]:
    """Return the patterns of one subscription.

    Raises:
        ValueError: there is no pattern; the empty pattern matches everything.
        ProtocolError: EINVAL if one has a NUL, or a str is not UTF-8.
    """
    if not patterns:
        raise ValueError("cannot subscribe: give at least one pattern; the empty one, b'', matches every key that is not reserved")
    encoded = [to_bytes(pattern) for pattern in patterns]
    for pattern in encoded:
        subscribe_packet(pattern)
    return encoded
