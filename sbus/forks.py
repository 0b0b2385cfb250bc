"""Connections after fork(2). Parent and child would share one socket, and each would get packets of the other."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol


class Forkable(Protocol):
    """A link with a socket."""

    def entered(self) -> AbstractContextManager[object]:
        """Keep other threads from the link: the child must not get what one of them has half changed."""

    def forked(self) -> None:
        """Give up the socket of the parent, because this process is the child. Must not send, and must not touch an event loop."""


_links: weakref.WeakSet[Forkable] = weakref.WeakSet()
"""Changed and read under the lock below."""

_lock = threading.RLock()
"""One thread forks at a time: two that took the locks of several links would wait for each other. Reentrant for signal handlers."""

_held: list[ExitStack] = []
"""The locks that the thread which forks holds meanwhile: the last element is that of the last handler that has interrupted it."""


def watch(link: Forkable) -> None:
    """Call *link*'s ``forked`` in each child of this process, for as long as the link exists."""
    with _lock:
        _links.add(link)


def _before_fork() -> None:
    held = ExitStack()
    held.enter_context(_lock)
    _held.append(held)
    for link in list(_links):
        held.enter_context(link.entered())


def _after_fork_in_parent() -> None:
    _held.pop().close()


def _after_fork_in_child() -> None:
    for link in list(_links):
        link.forked()
    _held.pop().close()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
