"""Connections after fork(2). Parent and child would share one socket, and each would get packets of the other."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """A link with a socket."""

    def forked(self) -> None:
        """Give up the socket of the parent, because this process is the child. Must not send, and must not touch an event loop."""


_links: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(link: Forkable) -> None:
    """Call *link*'s ``forked`` in each child of this process, for as long as the link exists."""
    _links.add(link)


def _after_fork() -> None:
    for link in list(_links):
        link.forked()


os.register_at_fork(after_in_child=_after_fork)
