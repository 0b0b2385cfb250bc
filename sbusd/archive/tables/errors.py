"""What can be wrong with tables on disk."""

from __future__ import annotations

from pathlib import Path

from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable


class TablesError(SbusError):
    """A folder of tables cannot be used. ``path`` is what is wrong, ``reason`` how, and what to do."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{printable(str(path), 4096)}: {reason}")
        self.path = path
        self.reason = reason
