"""Signals as a file descriptor: signal(7), ``signal.set_wakeup_fd``.

Without it, a signal that arrives while the switch waits would be handled only after the next packet. So the interpreter's own handler
writes to a socket that the switch watches.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop the bus, with exit status 0."""

HANDLED = frozenset({*ENDING, signal.SIGHUP, signal.SIGUSR2})
"""All signals that the bus handles."""


class Signals:
    """A context in which :data:`ENDING` signals call *stop*, and :meth:`fileno` becomes readable when a signal arrives.

    SIGHUP requests a reload of the configuration, :meth:`take_hangup`, as for most daemons; it stops the original server in the
    foreground. SIGUSR2 requests a restart in place, :meth:`take_handover`.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._hung_up = False
        self._hands_over = False
        self._inner, self._outer = socket.socketpair()
        self._previous: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> Signals:
        """Install the handlers."""
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
        # A process that restarts in place blocks them, so that none ends the new program before it has handlers.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._inner.close()
        self._outer.close()

    def fileno(self) -> int:
        """Return the descriptor to watch."""
        return self._inner.fileno()

    def drain(self) -> None:
        """Make :meth:`fileno` unreadable again; the handlers run on their own."""
        try:
            while self._inner.recv(64):
                pass
        except BlockingIOError:
            pass

    def take_hangup(self) -> bool:
        """Return whether SIGHUP has arrived since the last call, once or several times."""
        hung_up, self._hung_up = self._hung_up, False
        return hung_up

    def take_handover(self) -> bool:
        """Return whether SIGUSR2 has arrived since the last call, once or several times."""
        hands_over, self._hands_over = self._hands_over, False
        return hands_over

    def _hand_over(self, _number: int, _frame: FrameType | None) -> None:
        """Remember SIGUSR2."""
        self._hands_over = True

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        """Remember SIGHUP: the reload happens between two turns, not in the middle of one."""
        self._hung_up = True

    def _arrived(self, _number: int, _frame: FrameType | None) -> None:
        """Handle an ending signal."""
        self._stop()
