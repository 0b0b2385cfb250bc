"""Printing what comes for as long as was asked for, as ``sbusctl sub`` and ``sbusctl monitor`` do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sbusd.ctl.output import flush

ItemT = TypeVar("ItemT")
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class Writer(Protocol[ItemT_contra]):
    """Writes items to standard output, and counts those that were asked for: news of a loss is none."""

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
    """Write what *receive* returns, until *count* are printed or *clock* reaches *deadline*, in seconds; None is no bound.

    Standard output is flushed whenever nothing more is there at once: prompt for a slow bus, and few system calls for a fast one.
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
