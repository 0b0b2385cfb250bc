"""Encodes keys, patterns and payloads of a program as bytes of the wire."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from sbus.errors import PayloadTooLarge, ProtocolError
from sbus.pattern_hints import PatternWarning, hint
from sbus.protocol import controls
from sbus.protocol.credentials import parse_secret_pattern
from sbus.protocol.errors import ErrorCode
from sbus.protocol.keys import SECRET_HEAD, bytes_of, text_of
from sbus.protocol.memberships import check_group, stored_pattern
from sbus.protocol.packets import MAX_PACKET_BYTES, publish_packet, subscribe_packet

Data = bytes | bytearray | memoryview | str
"""What a program can give as a payload; a str is encoded in UTF-8."""

Patterns = str | bytes | Sequence[str | bytes]
"""A pattern, or several."""

Encode = Callable[[str | bytes, Data], bytes]
"""A function that makes the packet which publishes a payload under a key."""

try:
    from sbus.speedups import publication_encoder
except ImportError:  # a tree that is not built; sbusctl doctor reports it

    def publication_encoder(encode: Encode) -> Encode:
        """Return *encode*."""
        return encode


def to_bytes(text: str | bytes, what: str = "key") -> bytes:
    """Return a key, pattern or name as it is, or a str in UTF-8, with the bytes of ``Message.key`` that are not; *what* names it in errors.

    Raises:
        TypeError: it is neither.
        ProtocolError: EINVAL if a str has surrogates that no byte is decoded as.
    """
    if isinstance(text, bytes):
        return text
    try:
        return bytes_of(text)
    except AttributeError:
        raise TypeError(f"{what} must be str or bytes, not {type(text).__name__}") from None
    except UnicodeEncodeError as error:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid text {text[:24]!r}: contains a surrogate; give bytes instead") from error


def payload_bytes(data: Data, what: str = "payload") -> bytes:
    """Return *data* as bytes; *what* names it in errors.

    Raises:
        TypeError: it is of another type.
        ProtocolError: EINVAL if a str has surrogates, which represent bytes that are not UTF-8: give bytes instead.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, str):
        return _payload_of(data)
    try:
        return bytes(memoryview(data))
    except TypeError:
        given = type(data).__name__
        advice = "; use json.dumps()" if given in {"dict", "list"} else ""
        raise TypeError(f"{what} must be bytes, bytearray, memoryview or str, not {given}{advice}") from None


def _payload_of(text: str) -> bytes:
    """Return a payload in UTF-8. Raises ProtocolError (EINVAL) if it has surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid text {text[:24]!r}: contains a surrogate; give bytes instead") from error


def _publication(key: str | bytes, payload: Data) -> bytes:
    """Return the packet that publishes *payload* under *key*.

    Raises:
        TypeError: *key* or *payload* is of another type.
        PayloadTooLarge: no bus accepts a packet of that size.
        ProtocolError: EINVAL if *key* has a NUL, or a str is not UTF-8.
    """
    name, data = to_bytes(key), payload_bytes(payload)
    try:
        return publish_packet(name, data)
    except ProtocolError as error:
        if error.code is not ErrorCode.EMSGSIZE:
            raise
        raise PayloadTooLarge(len(b"MSG \0") + len(name) + len(data), MAX_PACKET_BYTES) from error


publication = publication_encoder(_publication)
"""Does as :func:`_publication`. Compiled, it keeps the heads of the packets of some keys."""


def control_key(key: str | bytes) -> bytes:
    """Return the key of a control message that a program may send.

    Raises:
        ProtocolError: EINVAL if a str is not UTF-8, or if it is the key of a batch: only ``outgoing`` makes batches, in order.
    """
    name = to_bytes(key)
    if name == controls.BATCH:
        raise ProtocolError(ErrorCode.EINVAL, "cannot send a batch as a control message: use coalesce()")
    return name


def group_name(group: str | bytes | None) -> bytes:
    """Return the name of a queue group, empty for None: a name that is empty by mistake would make each member get every message.

    Raises:
        TypeError: it is neither str nor bytes nor None.
        ProtocolError: EINVAL if it is not valid.
    """
    if group is None:
        return b""
    name = to_bytes(group, "group")
    check_group(name)
    return name


def service_group(group: str | bytes) -> bytes:
    """Return the name of the group of a service, empty for none. Raises what :func:`group_name` raises."""
    return group_name(group) if to_bytes(group, "group") else b""


def pattern_list(patterns: Sequence[Patterns], separator: bytes = b"/", group: str | bytes | None = None) -> list[bytes]:
    """Return the stored patterns of one subscription of a member of *group*, or of none.

    Warns of probable mistakes if the *separator* is the usual one.

    Raises:
        TypeError: one is neither str nor bytes, nor a sequence of them.
        ValueError: there is no pattern; the empty pattern matches everything.
        ProtocolError: EINVAL if one has a NUL, is a malformed private key, if a str is not UTF-8, or if *group* is not a valid name.
    """
    name = group_name(group)
    encoded = [to_bytes(pattern, "pattern") for each in patterns for pattern in (each if isinstance(each, list | tuple) else (each,))]
    if not encoded:
        raise ValueError("cannot subscribe: give at least one pattern; the empty one, b'', matches every key that is not reserved")
    for pattern in encoded:
        subscribe_packet(pattern)
        if pattern.startswith(SECRET_HEAD) and separator == b"/":
            _check_private(pattern)
        if separator == b"/" and (words := hint(pattern)):
            warnings.warn(words, PatternWarning, stacklevel=3)
    return [stored_pattern(pattern, name) for pattern in encoded]


def _check_private(pattern: bytes) -> None:
    """Raise ProtocolError (EINVAL) if *pattern* is malformed: the bus would close the connection."""
    try:
        parse_secret_pattern(pattern)
    except ProtocolError as error:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid pattern {text_of(pattern[:64])!r}: {error.words}") from None
