"""The file with the stalls of the main loop. Spec: sbusd(8), ``--stalls``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sbusd.dataplane.contract import Switch
from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable


class StallFileError(SbusError, OSError):
    """The file cannot be opened; the text is one line. The program exits with status 1."""


class StallMeter(Protocol):
    """Measures the parts of the loop outside the switch."""

    def note(self, name: str) -> None:
        """Attribute the time since the last step to the cause *name*."""

    def rest(self) -> None:
        """End the measurement of this turn, because the loop has ended."""


class _NoMeter:
    """Measures nothing."""

    def note(self, name: str) -> None:
        """Ignore a step."""

    def rest(self) -> None:
        """Ignore the end."""


@contextmanager
def measure_stalls(path: Path | None, switch: Switch) -> Iterator[StallMeter]:
    """Measure *switch* until the block ends, and write its stalls to *path*; measure nothing if that is None.

    Raises:
        StallFileError: the file cannot be opened.
    """
    if path is None:
        yield _NoMeter()
        return
    # Imported here: a bus outside of tests does not need it.
    from sbusd.dataplane.stalls import Stalls  # noqa: PLC0415

    # Opened at once, so that an error still goes to the terminal.
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StallFileError(f"cannot open {printable(str(path))}: {error.strerror}") from None
    stalls = Stalls()
    switch.measure(stalls)
    with open(fd, "w", encoding="utf-8") as file:
        try:
            yield stalls
        finally:
            try:
                file.write(json.dumps(stalls.report(), indent=1) + "\n")
                file.flush()
            except OSError as error:
                sys.stderr.write(f"sbusd: cannot write {printable(str(path))}: {error.strerror}\n")
