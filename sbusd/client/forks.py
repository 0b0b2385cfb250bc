"""Connections after fork(2). Parent and child would share one socket, and each would get packets of the other."""

from __future__ import annotations

import os
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol


class Forkable(Protocol):
    """A link with a socket."""

    def entered(self) -> AbstractContextManager[None]:
        """Keep other threads from the link: the child must not get what one of them has half changed."""

    def forked(self) -> None:
        """Give up the socket of the parent, because this process is the child. Must not send, and must not touch an event loop."""


_links: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(link: Forkable) -> None:
    """Call *link*'s ``forked`` in each child of this process, for as long as the link exists."""
    _links.add(link)


_held = ExitStack()
"""The locks that the thread which forks holds meanwhile."""


def _before_fork() -> None:
    for link in list(_links):
        _held.enter_context(link.entered())


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.forked()
    _held.close()


os.register_at_fork(before=_before_fork, after_in_parent=_held.close, after_in_child=_after_fork_in_child)
