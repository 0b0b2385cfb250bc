"""The free space of the disk, of which some is left for what frees space: acknowledging and removing."""

from __future__ import annotations

from sbusd.config.quantities import show_size
from sbusd.protocol.printable import printable
from sbusd.store.engine.database import Database, mount_of
from sbusd.store.engine.messages import EngineError


class DiskSpace:
    """The disk of *database*; below *min_free* bytes nothing is put."""

    def __init__(self, database: Database, min_free: int) -> None:
        self._database = database
        self._min_free = min_free

    def check(self) -> None:
        """Raise EngineError (ENOSPC) if the disk is almost full."""
        if self._min_free and self._database.free_bytes() < self._min_free:
            name, least, mount = printable(str(self._database.path)), show_size(self._min_free), mount_of(self._database.path)
            words = f"{mount} has less than {least} free for {name}; free some space there, or remove messages: sbusctl store purge STREAM"
            raise EngineError("ENOSPC", words)

    def is_short(self) -> bool:
        """Return whether the disk is, or soon will be, almost full; False if that is not known."""
        try:
            return self._database.free_bytes() < 2 * self._min_free
        except EngineError:
            return False
