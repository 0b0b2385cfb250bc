"""The list of shipped segments: sbus-ship(8) writes it, and the retention of sbus-recorder(8) reads it.

The first line is a JSON object, which names the destination, its server, the host and the shipper. Each later line is the file name of an
index entry. A line without its end was not completed, and does not count. Lines are only added.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from sbus_archive.storage.files import FILE_MODE, RecordError, publish_file

LIST = "shipped"
"""The name of the list in the directory of the state."""

LIST_VERSION = 1

_MAX_HEADER_BYTES = 8 << 10
_CHUNK_BYTES = 1 << 20


class OtherDestinationError(RecordError):
    """A list belongs to another destination, server or host."""


@dataclass(frozen=True, slots=True)
class ListHeader:
    """The first line: ``id`` is random, and identifies this list in the destination.

    ``endpoint`` is the URL of its server, empty for the default one; ``created`` the time of the first line, in nanoseconds since 1970.
    """

    destination: str
    host: str
    id: str
    endpoint: str = ""
    created: int = 0
    version: int = LIST_VERSION

    def to_line(self) -> bytes:
        """Return the line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Return the header in *line*. Raises ValueError if it is invalid; the text says why."""
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError("the first line is not JSON") from None
        if not isinstance(value, dict) or value.get("version") != LIST_VERSION:
            raise ValueError(f"the first line is not that of a list of version {LIST_VERSION}")
        texts = [text for name in ("destination", "host", "id") if isinstance(text := value.get(name), str) and text]
        if len(texts) != 3:
            raise ValueError("the first line does not have destination, host and id")
        created = value.get("created")
        return cls(texts[0], texts[1], texts[2], str(value.get("endpoint", "")), created if type(created) is int else 0)

    @property
    def place(self) -> tuple[str, str, str]:
        """What a list belongs to: destination, server and host."""
        return self.destination, self.endpoint.rstrip("/"), self.host

    def __str__(self) -> str:
        return f"{self.destination}{f' at {self.endpoint}' if self.endpoint else ''} as host {self.host}"


class ShippedList:
    """Reads the list in the file ``path`` as it grows. Memory: about a hundred bytes for each segment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: ListHeader | None = None
        """The first line, None until it was read."""
        self._names: set[str] = set()
        self._position = 0
        self._inode = -1

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def refresh(self) -> None:
        """Read what was added since the last call.

        Raises:
            FileNotFoundError: the list does not exist yet.
            RecordError: it is damaged, or of a later version.
            OSError: it cannot be read.
        """
        with self.path.open("rb") as stream:
            found = os.fstat(stream.fileno())
            if found.st_ino != self._inode or found.st_size < self._position:
                self._names.clear()
                self.header, self._position, self._inode = None, 0, found.st_ino
            stream.seek(self._position)
            if self.header is None:
                line = stream.readline(_MAX_HEADER_BYTES)
                try:
                    self.header = ListHeader.from_line(line)
                except ValueError as error:
                    raise RecordError(self.path, f"damaged list of shipped segments: {error}") from None
                self._position += len(line)
            rest = b""
            while part := stream.read(_CHUNK_BYTES):
                complete, newline, rest = (rest + part).rpartition(b"\n")
                self._position += len(complete) + len(newline)
                self._names.update(line.decode("ascii", "replace") for line in complete.splitlines())

    @property
    def position(self) -> int:
        """Number of bytes of complete lines."""
        return self._position


class ListWriter(ShippedList):
    """The list of one shipper, which alone may write it."""

    def __init__(self, path: Path, header: ListHeader) -> None:
        """Read the list, or create it with *header*.

        Raises:
            OtherDestinationError: it belongs to another destination, server or host.
            RecordError: it is damaged.
            OSError: it cannot be read or written.
        """
        super().__init__(path)
        if not path.exists():
            publish_file(path, header.to_line())
        self.refresh()
        known = self.header or header
        if known.place != header.place:
            raise OtherDestinationError(
                path, f"lists what was shipped to {known}, not to {header}. Move it away to ship all segments again; see sbus-ship(8)"
            )
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        # A line that an earlier process did not complete is overwritten.
        os.ftruncate(self._fd, self.position)
        os.lseek(self._fd, 0, os.SEEK_END)

    def add(self, name: str) -> None:
        """Add the file *name* of an index entry; it is durable on return. Raises OSError."""
        line = name.encode("ascii") + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._position)
            os.lseek(self._fd, 0, os.SEEK_END)
            raise
        self._position += len(name) + 1
        self._names.add(name)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
