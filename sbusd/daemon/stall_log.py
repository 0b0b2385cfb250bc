"""The file that the stalls of a bus are written to. Spec: sbusd(8), ``--stalls``."""

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
    """The file cannot be opened; its text is one line. The program exits with status 1."""


class Meter(Protocol):
    """What measures the parts of the loop that are outside the switch."""

    def note(self, name: str) -> None:
        """Charge the time since the last step to the cause *name*."""

    def rest(self) -> None:
        """End the measurement of this turn: the loop has ended."""


class _Nothing:
    """Measures nothing."""

    def note(self, name: str) -> None:
        """Ignore a step."""

    def rest(self) -> None:
        """Ignore the end."""


@contextmanager
def measured(path: Path | None, switch: Switch) -> Iterator[Meter]:
    """Measure *switch* until the block ends, and write its stalls to *path*; measure nothing if that is None.

    Raises:
        StallFileError: the file cannot be opened.
    """
    if path is None:
        yield _Nothing()
        return
    # Imported only here: what is for tests costs the bus nothing.
    from sbusd.dataplane.stalls import Stalls  # noqa: PLC0415

    # Opened before there is anything to write: where the bus was started, the error is still seen.
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
