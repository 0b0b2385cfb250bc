"""How an ``AsyncBus`` and its subscriptions begin: when the program awaits them. ``sbus.sync.beginning`` has the same names."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from typing import Any, Self, TypeVar

from sbus.asyncio.link import AsyncLink
from sbus.bus_socket import Target
from sbus.inbox import Inbox
from sbus.protocol.keys import text_of
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


class WarnsIfUnused:
    """The end of a subscription: its program has begun it, or has had an error because it had not, or it gets a RuntimeWarning."""

    _inbox: Inbox

    def __del__(self) -> None:
        """Warn if it is unused: the program probably waits for messages that cannot arrive."""
        if not self._inbox.is_used:
            where = ", ".join(repr(text_of(pattern)) for pattern in self._inbox.patterns)
            warnings.warn(f"the subscription to {where} was never awaited, so it never began", RuntimeWarning, stacklevel=2, source=self)
