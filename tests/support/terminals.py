"""Interactive shells on a terminal, into which a test types."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

TIMEOUT_SECONDS = 60.0
"""When output that has not come is a failure."""


class Terminal:
    """A program on a terminal of *columns* columns."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, columns: int = 200) -> None:
        self._command = list(command)
        self._env = dict(env)
        self._columns = columns
        self.shown = b""
        """All that the terminal was sent."""

    def __enter__(self) -> Self:
        """Start the program."""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execvpe(self._command[0], self._command, self._env)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, self._columns, 0, 0))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Kill the program."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)

    def type(self, text: str) -> None:
        """Type *text*."""
        os.write(self._fd, text.encode())

    def wait_for(self, text: bytes, after: int = 0) -> bytes:
        """Wait until *text* is shown after the first *after* bytes, and return what is shown after these."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while text not in self.shown[after:]:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} is not shown, but {self.shown[after:]!r}"
            try:
                self.shown += os.read(self._fd, 65_536)
            except OSError:
                raise AssertionError(f"the program has ended: {self.shown!r}") from None
        return self.shown[after:]
