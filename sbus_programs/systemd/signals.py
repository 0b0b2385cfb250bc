"""Signals as a file descriptor: signal(7), ``signal.set_wakeup_fd``.

The interpreter calls the handlers in the main thread, between two instructions. A signal interrupts a wait of that thread only if the
kernel gives it to that thread, and during the wait: one that comes right before it, or goes to another thread, would be handled when the
wait ends, maybe never. So the interpreter's own handler writes to a socket, which everything that waits without a limit also watches.
"""

from __future__ import annotations

import atexit
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType, TracebackType
from typing import NoReturn, Self

ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop the bus and its programs, with exit status 0."""

HANDLED = frozenset({*ENDING, signal.SIGHUP, signal.SIGUSR2})
"""All signals that the bus handles."""


Handler = Callable[[int, FrameType | None], object]


def exit_on_ending_signals() -> None:
    """From now on, the first of the :data:`ENDING` signals exits with status 0, until the program has set handlers of its own.

    A service calls this before it creates anything, so that a signal during its start ends it as one later does. They are ignored once
    the interpreter ends: it gives them their default effect, and the status would be that of a program that was killed.
    """
    for number in ENDING:
        signal.signal(number, _exit)
    atexit.register(_ignore)


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    """Exit, and let no further signal interrupt that."""
    ignore_ending_signals()
    sys.exit(0)


def ignore_ending_signals() -> None:
    """Let the :data:`ENDING` signals have no effect from now on.

    SIG_IGN would be inherited by child processes, and the interpreter would report a signal that arrived together with the one it handles.
    """
    for number in ENDING:
        signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal that has no effect."""


def _ignore() -> None:
    """Ignore the :data:`ENDING` signals while the interpreter ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the interpreter reports one that arrives while it changes the handler
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


class WatchedSignals:
    """A context in which signals call *handlers*, and :meth:`fileno` is readable from the arrival of one until :meth:`drain`.

    Only the main thread may enter it.
    """

    def __init__(self, handlers: Mapping[signal.Signals, Handler]) -> None:
        self._handlers = dict(handlers)
        self._inner, self._outer = socket.socketpair()
        self._previous: dict[int, signal.Handlers | Handler | int | None] = {}
        self._previous_wakeup = -1

    def __enter__(self) -> Self:
        """Install the handlers."""
        for end in (self._inner, self._outer):
            end.setblocking(False)
        self._previous_wakeup = signal.set_wakeup_fd(self._outer.fileno(), warn_on_full_buffer=False)
        for number, handler in self._handlers.items():
            self._previous[number] = signal.signal(number, handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the previous handlers, but not the one that exits: the program ends by itself."""
        for number, handler in self._previous.items():
            signal.signal(number, _do_nothing if handler is _exit else signal.SIG_DFL if handler is None else handler)
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


class EndingSignals(WatchedSignals):
    """A context in which :data:`ENDING` signals call *stop*, and others have their own *handlers*.

    A program that only ends by signals need not call :meth:`drain`.
    """

    def __init__(self, stop: Callable[[], None], handlers: Mapping[signal.Signals, Handler] = MappingProxyType({})) -> None:
        super().__init__({**dict.fromkeys(ENDING, lambda _number, _frame: stop()), **handlers})


class Signals(EndingSignals):
    """The signals of the bus. :data:`ENDING` ones call *stop*.

    SIGHUP requests a reload of the configuration, :meth:`take_hangup`, as for most daemons; it stops the original server in the
    foreground. SIGUSR2 requests a restart in place, :meth:`take_handover`.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__(stop, {signal.SIGHUP: self._hang_up, signal.SIGUSR2: self._hand_over})
        self._hung_up = False
        self._hands_over = False

    def __enter__(self) -> Self:
        """Install the handlers."""
        super().__enter__()
        # A process that restarts in place blocks them, so that none ends the new program before it has handlers.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        return self

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
