"""The errors of the wire.

::

    SbusError
    └── ProtocolError (ValueError)     bytes that sbus-protocol(7) forbids; has the error code for the peer
        └── BadAddressError             an address that names no socket
"""

from __future__ import annotations

import enum


class ErrorCode(enum.Enum):
    """The codes of ``CMSG !/bus/error``, by their names on the wire. Spec: sbus-protocol(7) §8.

    The value is a general description, for errors without a more exact one.
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
        """Whether the bus closes the connection after sending it."""
        return self in _DISCONNECTING


_DISCONNECTING = frozenset({ErrorCode.EPROTO, ErrorCode.EACCES, ErrorCode.ENOBUFS, ErrorCode.EMFILE})


class SbusError(Exception):
    """The base class of every error of this project."""

    def __reduce__(self) -> tuple[object, ...]:
        # By default pickle calls the class with the text as its only argument.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[SbusError], args: tuple[object, ...], attributes: dict[str, object]) -> SbusError:
    """Return a pickled error, for example of another process."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ProtocolError(SbusError, ValueError):
    """Bytes that the protocol forbids; ``code`` and ``words`` are sent to the peer."""

    def __init__(self, code: ErrorCode, words: str) -> None:
        super().__init__(f"{code.name} {words}")
        self.code = code
        self.words = words


class BadAddressError(ProtocolError):
    """An address that does not name a socket that this project can open."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(ErrorCode.EINVAL, f"invalid address {address!r}: {reason}" if address else f"the address {reason}")
        self.address = address
        self.reason = reason
