"""The terminal of a live ``sbusctl top``: single keys, and the alternate screen, which is restored at the end."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

_QUIT = frozenset(b"qQ\x04")
"""q, Q and Ctrl-D."""


class Keyboard:
    """Keys pressed on the terminal *fd*; none if it is not a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before: list[int | list[bytes | int]] | None = None

    def __enter__(self) -> Self:
        """Switch to single keys without echo; Ctrl-C remains a signal."""
        if os.isatty(self._fd):
            # Ignore a terminal that has just closed.
            with contextlib.suppress(termios.error):
                before = termios.tcgetattr(self._fd)
                tty.setcbreak(self._fd, termios.TCSANOW)
                self._before = before
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the terminal, unless it has closed."""
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def quit_within(self, seconds: float) -> bool:
        """Wait *seconds*, until a quit key, or until the terminal closes; return whether to quit."""
        if self._before is None:
            time.sleep(seconds)
            return False
        end = time.monotonic() + seconds
        while (rest := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._fd], [], [], rest)
            if ready and self._asks_for_end():
                return True
        return False

    def _asks_for_end(self) -> bool:
        """Return whether a quit key was pressed, or the terminal has closed."""
        try:
            pressed = os.read(self._fd, 64)
        except OSError:
            return True
        return not pressed or not _QUIT.isdisjoint(pressed)


class Screen:
    """The alternate screen of the terminal."""

    def __init__(self) -> None:
        # No markup or highlighting, because clients choose the text.
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        return self._console.size.width, self._console.size.height

    def show(self, lines: list[str]) -> None:
        """Show *lines*, replacing the previous ones in one write, so that nothing flickers."""
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)

    def __enter__(self) -> Self:
        """Switch to the alternate screen."""
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Switch back."""
        self._live.stop()


def can_show_screen() -> bool:
    """Return whether standard output is a terminal with an alternate screen."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
