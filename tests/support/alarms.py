"""Handlers of SIGALRM, which interrupt a test."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

_REFUSAL = "has interrupted a call of the same bus"
"""In the error of a handler that comes when it cannot use the bus."""


@contextmanager
def alarm(handle: Callable[[], object], seconds: float, interval: float = 0.0) -> Iterator[None]:
    """Call *handle* in a signal handler after *seconds*, and then every *interval*. With 0 seconds, the test raises SIGALRM itself."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        try:
            handle()
        except RuntimeError as error:
            if _REFUSAL not in str(error):
                raise
            signal.setitimer(signal.ITIMER_REAL, 0.05, interval)  # the call does not wait yet

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, interval)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Another thread can be about to take the last signal. The default effect would end the process then, or be reported as an error.
        signal.signal(signal.SIGALRM, before if callable(before) else _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal that comes late."""


class Handlers:
    """Handlers of a signal that comes again and again, and use a bus; a context. ``done`` counts those that have done their work.

    At most *most* are nested: on a slow machine, signals come faster than their handlers end.
    """

    def __init__(self, work: Callable[[], object], seconds: float = 0.002, *, most: int = 5) -> None:
        self.done = 0
        self._work = work
        self._most = most
        self._running = 0
        self._alarm: AbstractContextManager[None] = alarm(self._handle, seconds, seconds)

    def __enter__(self) -> Handlers:
        self._alarm.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._alarm.__exit__(None, None, None)

    def _handle(self) -> None:
        if self._running == self._most:
            return
        self._running += 1
        try:
            self._work()
            self.done += 1
        except RuntimeError as error:
            if _REFUSAL not in str(error):
                raise
        finally:
            self._running -= 1
