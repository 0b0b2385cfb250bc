"""Prints received items until a count or a deadline, for ``sbusctl sub`` and ``sbusctl monitor``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sbusd.ctl.output import flush

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class Writer(Protocol[ItemT_contra]):
    """Writes items to standard output, and counts those that match the request; loss notices are not counted."""

    printed: int

    def write(self, item: ItemT_contra) -> None:
        """Write one item."""


def follow(
    receive: Callable[[float | None], ItemT],
    writer: Writer[ItemT],
    count: int | None,
    deadline: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Write the results of *receive* until *count* are printed or *clock* reaches *deadline*, in seconds; None: no limit.

    Standard output is flushed when no item is available: prompt on a quiet bus, with few system calls on a busy one.
    """
    while count is None or writer.printed < count:
        try:
            item = receive(0)
        except TimeoutError:
            flush()
            remaining = None if deadline is None else deadline - clock()
            if remaining is not None and remaining <= 0:
                return
            try:
                item = receive(remaining)
            except TimeoutError:
                return
        writer.write(item)
