"""The file that the stalls of a bus are written to. Spec: sbusd(8), ``--stalls``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sbusd.daemon.contract import Switch
from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable


class StallFileError(SbusError, OSError):
    """The file cannot be opened; its text is one line. The program exits with status 1."""


@contextmanager
def measured(path: Path | None, switch: Switch) -> Iterator[Callable[[str], None]]:
    """Measure *switch* until the block ends, and write its stalls to *path*; measure nothing if that is None.

    Yields a function that charges what was done since the last step to the cause that it is called with.

    Raises:
        StallFileError: the file cannot be opened.
    """
    if path is None:
        yield _ignore
        return
    # Imported only here: what is for tests costs the bus nothing.
    from sbusd.daemon.stalls import Stalls  # noqa: PLC0415

    # Opened before there is anything to write: where the bus was started, the error is still seen.
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StallFileError(f"cannot open {printable(str(path))}: {error.strerror}") from None
    stalls = Stalls()
    switch.measure(stalls)
    with open(fd, "w", encoding="utf-8") as file:
        try:
            yield stalls.note
        finally:
            try:
                file.write(json.dumps(stalls.report(), indent=1) + "\n")
                file.flush()
            except OSError as error:
                sys.stderr.write(f"sbusd: cannot write {printable(str(path))}: {error.strerror}\n")


def _ignore(_cause: str) -> None:
    """Measure nothing."""
