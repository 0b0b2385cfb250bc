"""How an ``AsyncBus`` and its subscriptions begin: when the program awaits them. ``sbus.sync.beginning`` has the same names."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self, TypeVar

from sbus.asyncio.link import AsyncLink
from sbus.bus_socket import Target
from sbus.session import Session

B = TypeVar("B", bound="AsyncBeginning")


class AsyncBeginning:
    """An object that begins when it is awaited, or at the begin of its ``async with``."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self._begun().__await__()

    async def _begun(self) -> Self:
        """Begin, unless that has been done."""
        raise NotImplementedError


def begin(new: B) -> B:
    """Return *new*, which its program begins."""
    return new


def make_link(
    target: Target,
    session: Session,
    timeout: float | None,
    *,
    reconnect: bool,
    background: bool,  # noqa: ARG001 - a loop always reads in the background
    gather: bool,  # noqa: ARG001 - the writer always gathers
) -> AsyncLink:
    """Return the link of a new ``AsyncBus``."""
    return AsyncLink(target, session, timeout, reconnect=reconnect)
