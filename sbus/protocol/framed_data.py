"""The data of calls to sbus-store(8), and the ranges of numbers in it. Spec: sbus-store(8), "CALLS".

A frame is its length, 4 bytes little endian, and that many bytes. That of a message is ``<key> NUL <payload>``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from sbus.protocol.errors import ErrorCode, ProtocolError

MAX_DELAY_SECONDS = 366 * 86_400.0
"""The longest delay of a job, lease, or time between two tries: about a year."""

MIN_LEASE_SECONDS = 0.1
"""The shortest lease."""

MIN_EXPIRE_SECONDS = 0.001
MAX_EXPIRE_SECONDS = 100 * MAX_DELAY_SECONDS
"""The time after which a message is removed."""

LATEST_SECONDS = 32_503_680_000.0
"""The year 3000, in seconds since 1970: later times are a mistake."""

MAX_MESSAGES = 256
"""Messages of one response."""

MAX_JOBS = 64
"""Jobs of one call of ``store/take``: their heads always fit into a response."""


MAX_DATA_BYTES = 294_912
"""Longest data of a request or response: in base64 and with its envelope it fits into a packet."""

MAX_FRAMES = 256
"""Frames of a request or response."""

_LENGTH = struct.Struct("<I")

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def message_frame(key: bytes, payload: bytes) -> bytes:
    """Return the content of the frame of a message."""
    return b"%b\0%b" % (key, payload)


def split_message(frame: bytes) -> tuple[bytes, bytes]:
    """Return the key and the payload of a message. Raises ProtocolError (EINVAL) if the frame has no NUL."""
    key, nul, payload = frame.partition(b"\0")
    if not nul:
        raise ProtocolError(ErrorCode.EINVAL, "the frame of a message has no NUL after its key")
    return key, payload


def framed_data(head: Mapping[str, object], frames: Sequence[bytes] = ()) -> bytes:
    """Return *head* as JSON, and *frames* after it if there are any."""
    text = _encode(head).encode()
    if not frames:
        return text
    parts = [text, b"\0"]
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    return b"".join(parts)


def parse_framed_data(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the object and the frames in *data*; empty data are an empty object.

    Raises:
        ProtocolError: EINVAL if *data* are neither, or have more than MAX_FRAMES frames.
    """
    text, nul, rest = data.partition(b"\0")
    try:
        head = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        raise ProtocolError(ErrorCode.EINVAL, "the data do not begin with a JSON object in UTF-8") from None
    if not isinstance(head, dict):
        raise ProtocolError(ErrorCode.EINVAL, "the data do not begin with a JSON object in UTF-8")
    return head, _frames(rest) if nul else []


def _frames(data: bytes) -> list[bytes]:
    """Return the frames in *data*."""
    frames: list[bytes] = []
    place, end = 0, len(data)
    while place < end:
        begin = place + _LENGTH.size
        if begin > end or (place := begin + _LENGTH.unpack_from(data, begin - _LENGTH.size)[0]) > end:
            raise ProtocolError(ErrorCode.EINVAL, f"frame {len(frames)} is longer than the data")
        frames.append(data[begin:place])
        if len(frames) > MAX_FRAMES:
            raise ProtocolError(ErrorCode.EINVAL, f"the data have more than {MAX_FRAMES} frames")
    return frames
