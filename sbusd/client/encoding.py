"""Encodes keys, patterns and payloads of a program as bytes of the wire."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

from sbusd.client.errors import PayloadTooLarge, ProtocolError
from sbusd.client.pattern_hints import PatternWarning, hint
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.keys import MAX_KEY_BYTES
from sbusd.protocol.packets import MAX_PACKET_BYTES, publish_packet, subscribe_packet

_CACHED_HEADS = 512
"""Keys whose packet head is cached: most programs publish to few keys. With keys of the greatest cached length, which is the default
maximum of a bus, that is 4 MiB."""


Data = bytes | bytearray | memoryview | str
"""What a program can give as a payload; a str is encoded in UTF-8."""

Patterns = str | bytes | Sequence[str | bytes]
"""A pattern, or several."""


def to_bytes(text: str | bytes, what: str = "key") -> bytes:
    """Return *text* as it is, or a str in UTF-8; *what* names it in errors.

    Raises:
        TypeError: it is neither.
        ProtocolError: EINVAL if a str has surrogates, which represent bytes that are not UTF-8: give bytes instead.
    """
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except AttributeError:
        raise TypeError(f"{what} must be str or bytes, not {type(text).__name__}") from None
    except UnicodeEncodeError as error:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid text {text[:24]!r}: contains a surrogate; give bytes instead") from error


def payload_bytes(data: Data, what: str = "payload") -> bytes:
    """Return *data* as bytes; *what* names it in errors.

    Raises:
        TypeError: it is of another type.
        ProtocolError: as :func:`to_bytes`.
    """
    if isinstance(data, bytes | str):
        return to_bytes(data, what)
    try:
        return bytes(memoryview(data))
    except TypeError:
        given = type(data).__name__
        advice = "; use json.dumps()" if given in {"dict", "list"} else ""
        raise TypeError(f"{what} must be bytes, bytearray, memoryview or str, not {given}{advice}") from None


def publication(key: str | bytes, payload: Data) -> bytes:
    """Return the packet that publishes *payload* under *key*.

    Raises:
        TypeError: *key* or *payload* is of another type.
        PayloadTooLarge: no bus accepts a packet of that size.
        ProtocolError: EINVAL if *key* has a NUL, or a str is not UTF-8.
    """
    try:
        head = b"" if len(key) > MAX_KEY_BYTES else _head(key) if isinstance(key, bytes) else _head_of_text(key)
    except TypeError:
        to_bytes(key)  # raises an error that names the argument
        raise
    if not head:
        return _long_publication(to_bytes(key), payload_bytes(payload))
    packet = head + (payload if isinstance(payload, bytes) else payload_bytes(payload))
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


def pattern_list(patterns: Sequence[Patterns], separator: bytes = b"/") -> list[bytes]:
    """Return the patterns of one subscription, and warn of probable mistakes if the *separator* is the usual one.

    Raises:
        TypeError: one is neither str nor bytes, nor a sequence of them.
        ValueError: there is no pattern; the empty pattern matches everything.
        ProtocolError: EINVAL if one has a NUL, or a str is not UTF-8.
    """
    encoded = [to_bytes(pattern, "pattern") for each in patterns for pattern in (each if isinstance(each, list | tuple) else (each,))]
    if not encoded:
        raise ValueError("cannot subscribe: give at least one pattern; the empty one, b'', matches every key that is not reserved")
    for pattern in encoded:
        subscribe_packet(pattern)
        if separator == b"/" and (words := hint(pattern)):
            warnings.warn(words, PatternWarning, stacklevel=3)
    return encoded
