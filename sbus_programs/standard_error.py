"""Error lines of a program. Its exit status must not depend on them: systemd starts a service again after one that is not documented."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn, TextIO

from sbus.protocol.printable import LINE_CHARACTERS, printable


def fail(program: str, line: str, status: int = 1) -> NoReturn:
    """Print *line* as :func:`print_error` does, and exit with *status*. Raises SystemExit."""
    print_error(program, line)
    raise SystemExit(status)


def print_error(program: str, line: str, stream: TextIO | None = None) -> None:
    """Write *line*, in printable characters, after the name of the *program*, as :func:`write_errors` does."""
    write_errors(f"{program}: {printable(line, LINE_CHARACTERS)}\n", stream)


def write_errors(text: str, stream: TextIO | None = None) -> None:
    """Write *text* to *stream*, by default standard error. It is lost if that is closed or full, or if its reader has gone."""
    # print() would write to standard output instead of a closed standard error.
    stream = sys.stderr if stream is None else stream
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            _drop_buffered(stream)


def _drop_buffered(stream: TextIO) -> None:
    """Empty the buffer of *stream*: the interpreter writes it again at its end, and a failure then changes the status."""
    fd = stream.fileno()
    kept, null = os.dup(fd), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, fd)
    stream.flush()
    os.dup2(kept, fd)
    os.close(kept)
    os.close(null)
