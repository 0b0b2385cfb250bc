"""The content of a configuration file: only regular files, and no more bytes than a configuration needs.

A drop-in may be written by a program with a defect, or be a link to anything. Reading it must neither block nor take long.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from errno import EISDIR, ENXIO
from pathlib import Path
from typing import Any, BinaryIO

MAX_FILE_BYTES = 256 << 10
"""Maximum size of a file: enough for 1,000 rules, and small enough that no file takes minutes to read."""

MAX_DOTS = 100
"""Maximum number of dots in a line, outside strings and comments: the time of tomllib grows with the square of the parts of a key."""

Table = dict[str, Any]

_NO_DOTS_OF_KEYS = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*(?:"{3,5}|\Z)|\'\'\'.*?(?:\'{3,5}|\Z)|"(?:[^"\\\n]|\\[^\n])*"?|\'[^\'\n]*\'?|\#[^\n]*''', re.DOTALL
)
"""A string or a comment. An unterminated one extends to where tomllib stops, so the time is proportional to the text."""


class NotRegularError(OSError):
    """The file is neither regular, nor a directory, nor ``/dev/null``."""


def open_regular(file: Path) -> BinaryIO:
    """Return *file*, open for reading; ``/dev/null`` counts as an empty file. Never blocks.

    Raises:
        NotRegularError: it is a FIFO, a socket or a device.
        OSError: it cannot be opened, or is a directory.
    """
    # Without O_NONBLOCK, open(2) of a FIFO waits for a writer.
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        # The error of open(2) for a socket.
        if error.errno == ENXIO:
            raise NotRegularError("not a regular file") from None
        raise
    try:
        _check_regular(os.fstat(descriptor))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_content(file: Path) -> bytes:
    """Return the content of *file*, at most one byte more than allowed. Raises OSError as :func:`open_regular`."""
    with open_regular(file) as stream:
        return stream.read(MAX_FILE_BYTES + 1)


def parse(text: str) -> Table:
    """Return the TOML document *text*.

    Raises:
        ValueError: it is not TOML.
        RecursionError: it is nested too deeply for a configuration.
    """
    if any(line.count(".") > MAX_DOTS for line in _NO_DOTS_OF_KEYS.sub("", text).split("\n")):
        raise RecursionError("too many dots in a line")
    return tomllib.loads(text)


def _check_regular(status: os.stat_result) -> None:
    """Raise OSError as :func:`open_regular` unless *status* belongs to a regular file or to ``/dev/null``."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    if not stat.S_ISREG(status.st_mode) and not _is_null(status):
        raise NotRegularError("not a regular file")


def _is_null(status: os.stat_result) -> bool:
    """Return whether *status* belongs to ``/dev/null``. Source: null(4)."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3)
