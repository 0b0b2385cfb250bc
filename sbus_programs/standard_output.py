"""Text of a program on standard output, for a program that cannot go on without it, such as for ``--help`` and ``--check``."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from sbus_programs.standard_error import write_errors


def print_line(program: str, line: str) -> None:
    """Write *line* and a newline to standard output at once. Raises SystemExit as :func:`exit_unwritten` does."""
    require_open(program)
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        exit_unwritten(program, error)


def require_open(program: str) -> None:
    """Exit as :func:`exit_unwritten` does if standard output was closed when the program started."""
    if sys.stdout is None:
        exit_unwritten(program, OSError(errno.EBADF, os.strerror(errno.EBADF)))


def exit_unwritten(program: str, error: OSError) -> NoReturn:
    """Exit with status 1 after a failed write to standard output, with one error line; silently if its reader has gone."""
    discard_rest()
    if not isinstance(error, BrokenPipeError):
        write_errors(f"{program}: cannot write to standard output: {error.strerror or error}\n")
    raise SystemExit(1) from None


def discard_rest() -> None:
    """Redirect standard output to the null device: the interpreter writes what is buffered at its end, and would report that again."""
    if sys.stdout is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
