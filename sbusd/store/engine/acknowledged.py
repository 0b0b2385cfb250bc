"""The last number of each stream, noted after each commit and not synced: it survives the death of the store, not a power cut.

The file has a record of a fixed size for each stream: a checksum, the number and the name. So a commit writes only the records of the
streams that it has changed. Nothing depends on the file: without it, the loss of the newest messages is less certain to be noticed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from sbusd.config.store import MAX_NAME_BYTES

_RECORD = struct.Struct(f"<IQ{MAX_NAME_BYTES}s")

_MAX_BYTES = _RECORD.size << 14
"""Bytes of the file that are read: a longer one was written by something else."""


class AcknowledgedNumbers:
    """The file *path*, which is created when a number is noted. Errors of the disk are ignored: the number is written next time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._places: dict[str, int] = {}
        """Of each stream, the place of its record."""
        self._noted: dict[str, int] = {}
        self._end = 0

    def read(self) -> Mapping[str, int]:
        """Return the number of each stream. A record that is damaged is left out."""
        content = b""
        with contextlib.suppress(OSError):
            self._open()
            content = os.pread(self._file, _MAX_BYTES, 0)
        self.close()
        self._end = len(content) // _RECORD.size * _RECORD.size
        for place in range(0, self._end, _RECORD.size):
            _, number, padded = _RECORD.unpack_from(content, place)
            name = padded.rstrip(b"\0").decode("utf-8", "replace")
            if name and _record(name, number) == content[place : place + _RECORD.size]:
                self._places[name] = place
                self._noted[name] = number
        return self._noted

    def note(self, numbers: Mapping[str, int]) -> None:
        """Write those of *numbers* that have changed."""
        with contextlib.suppress(OSError):
            for name, number in numbers.items():
                if self._noted.get(name) == number:
                    continue
                self._open()
                place = self._places.get(name, self._end)
                os.pwrite(self._file, _record(name, number), place)
                self._places[name] = place
                self._end = max(self._end, place + _RECORD.size)
                self._noted[name] = number

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        """Open or create the file, which only the own user can read, if it is not open. Raises OSError."""
        if self._file < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._file = os.open(self._path, flags, 0o600)


def _record(name: str, number: int) -> bytes:
    """Return the record of a stream."""
    body = _RECORD.pack(0, number, name.encode())[4:]
    return zlib.crc32(body).to_bytes(4, "little") + body
