"""Signals that end sbusctl in an orderly way: what is buffered is printed, and the terminal is restored."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

EXIT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP with the status of a shell. A second signal kills, in case standard output is not read.

    A signal that the caller of the program ignores stays ignored, as nohup(1) needs it.

    Raises:
        SystemExit: one of the signals has arrived in the block; 143 or 129.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before = {number: handler for number in EXIT_SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
