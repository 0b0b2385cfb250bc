"""Names of unknown users and groups: errors for a command, and marked ids for a bus that has to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NO_ID = (1 << 32) - 1
"""Not an id of any user or group: to the kernel it means "none", setuid(2). A rule about it matches no client."""

_are_allowed: ContextVar[bool] = ContextVar("_are_allowed", default=False)


class UnknownId(int):
    """:data:`NO_ID` instead of the id of an unknown name; ``reason`` is for the administrator."""

    reason: str

    def __new__(cls, reason: str) -> UnknownId:
        """Return the id."""
        made = super().__new__(cls, NO_ID)
        made.reason = reason
        return made


@contextmanager
def unknown_ids_allowed() -> Iterator[None]:
    """In this context an unknown name in a configuration is an :class:`UnknownId` instead of an error."""
    token = _are_allowed.set(True)
    try:
        yield
    finally:
        _are_allowed.reset(token)


def unknown(error: ValueError) -> UnknownId:
    """Return the id for the unknown name in *error*. Raises *error* if unknown ids are not allowed."""
    if not _are_allowed.get():
        raise error
    return UnknownId(str(error))
