"""Names of users and groups that this machine does not know: errors where a person asks, and marked ids where a bus has to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NO_ID = (1 << 32) - 1
"""No user's and no group's id: the kernel takes it for "none", setuid(2). A rule about it matches no client."""

_is_tolerant: ContextVar[bool] = ContextVar("_is_tolerant", default=False)


class UnknownId(int):
    """:data:`NO_ID` instead of the id of an unknown name; ``reason`` is for the administrator."""

    reason: str

    def __new__(cls, reason: str) -> UnknownId:
        """Return the id."""
        made = super().__new__(cls, NO_ID)
        made.reason = reason
        return made


@contextmanager
def tolerated() -> Iterator[None]:
    """While this lasts, an unknown name in a configuration is an :class:`UnknownId` instead of an error."""
    token = _is_tolerant.set(True)
    try:
        yield
    finally:
        _is_tolerant.reset(token)


def unknown(error: ValueError) -> UnknownId:
    """Return the id for a name of which *error* says that it is not known. Raises *error* where that is not tolerated."""
    if not _is_tolerant.get():
        raise error
    return UnknownId(str(error))
