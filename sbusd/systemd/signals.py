"""Signals as something to wait for: signal(7), ``signal.set_wakeup_fd``.

A signal that arrives while the switch waits would be seen only after the next packet: so the interpreter's own handler writes to
a socket that the switch watches.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType

ENDING = (signal.SIGINT, signal.SIGTERM)
"""End the bus with status 0."""

HANDLED = frozenset({*ENDING, signal.SIGHUP, signal.SIGUSR2})
"""All that the bus handles."""


class Signals:
    """While it is entered, the ending signals call *stop*; :meth:`fileno` is readable whenever a signal has arrived.

    SIGHUP asks to read the configuration again, :meth:`take_hangup`: as daemons do, and unlike the original, which it ends in the
    foreground. SIGUSR2 asks to start anew in place, :meth:`take_handover`.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._hung_up = False
        self._hands_over = False
        self._inner, self._outer = socket.socketpair()
        self._previous: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> Signals:
        """Take the signals over."""
        for end in (self._inner, self._outer):
            end.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(self._outer.fileno(), warn_on_full_buffer=False)
        handlers: Iterable[tuple[signal.Signals, Callable[[int, FrameType | None], None]]] = (
            *((number, self._arrived) for number in ENDING),
            (signal.SIGHUP, self._hang_up),
            (signal.SIGUSR2, self._hand_over),
        )
        for number, handler in handlers:
            self._previous[number] = signal.signal(number, handler)
        # Whoever started this process anew in place held them back, lest one of them end it before it could handle it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Give the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._inner.close()
        self._outer.close()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._inner.fileno()

    def drain(self) -> None:
        """Read what has arrived; the handlers themselves have run, or run before the next line of Python."""
        try:
            while self._inner.recv(64):
                pass
        except BlockingIOError:
            pass

    def take_hangup(self) -> bool:
        """Return whether SIGHUP has arrived since the last call; several are one."""
        hung_up, self._hung_up = self._hung_up, False
        return hung_up

    def take_handover(self) -> bool:
        """Return whether SIGUSR2 has arrived since the last call; several are one."""
        hands_over, self._hands_over = self._hands_over, False
        return hands_over

    def _hand_over(self, _number: int, _frame: FrameType | None) -> None:
        """Note SIGUSR2."""
        self._hands_over = True

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        """Note SIGHUP: what it asks for is done between two turns, not in the middle of one."""
        self._hung_up = True

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        """Handle an ending signal."""
        self._stop()
