"""How a ``Bus`` and its subscriptions begin: before the program gets them. ``sbus.asyncio.beginning`` has the same names."""

from __future__ import annotations

from typing import Self, TypeVar

from sbus.bus_socket import Target
from sbus.session import Session
from sbus.sync.gathering import GatheringLink
from sbus.sync.link import SyncLink

B = TypeVar("B", bound="Beginning")


class Beginning:
    """An object that has begun when the program gets it."""

    def _begun(self) -> Self:
        """Begin, unless that has been done."""
        raise NotImplementedError


def begin(new: B) -> B:
    """Begin *new*, and return it."""
    return new._begun()


def make_link(target: Target, session: Session, timeout: float | None, *, reconnect: bool, background: bool, gather: bool) -> SyncLink:
    """Return the link of a new ``Bus``."""
    kind = GatheringLink if gather else SyncLink
    return kind(target, session, timeout, reconnect=reconnect, background=background)
