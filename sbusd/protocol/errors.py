"""The errors of the wire.

::

    SbusError
    └── ProtocolError (ValueError)     bytes that sbus-protocol(7) does not allow; carries the code a peer is told
        └── BadAddressError                 an address that names no socket
"""

from __future__ import annotations

import enum


class ErrorCode(enum.Enum):
    """What ``CMSG !/bus/error`` can say, by its name on the wire. Spec: sbus-protocol(7) §8.

    The value is the plain meaning, used where nothing more exact is known.
    """

    EPROTO = "malformed packet"
    EACCES = "credentials do not match"
    EPERM = "not permitted"
    EDQUOT = "quota exceeded"
    EMSGSIZE = "key, pattern or packet too long"
    ENOSYS = "unknown control message"
    EINVAL = "malformed payload"
    ENOBUFS = "queue is full"
    EMFILE = "the bus has no file descriptor left"

    @property
    def disconnects(self) -> bool:
        """Whether the bus closes the connection after telling it."""
        return self in _DISCONNECTING


_DISCONNECTING = frozenset({ErrorCode.EPROTO, ErrorCode.EACCES, ErrorCode.ENOBUFS, ErrorCode.EMFILE})


class SbusError(Exception):
    """The root of every error of this project."""


class ProtocolError(SbusError, ValueError):
    """Bytes that the protocol does not allow; ``code`` and ``words`` are what the peer is told."""

    def __init__(self, code: ErrorCode, words: str) -> None:
        super().__init__(f"{code.name} {words}")
        self.code = code
        self.words = words


class BadAddressError(ProtocolError):
    """An address that names no socket this project can open."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(ErrorCode.EINVAL, f"invalid address {address!r}: {reason}")
        self.address = address
        self.reason = reason
