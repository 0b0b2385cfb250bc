"""Checks before the job starts: errors that a restart cannot repair, and that Spark would report in a way that a program cannot read."""

from __future__ import annotations

import json
from pathlib import Path

from sbusd.client.errors import RemoteRefusal
from sbusd.client.sync.bus import Bus
from sbusd.pipeline.errors import PermanentError
from sbusd.protocol.errors import ErrorCode

_SECONDS = 30.0
_VERSION = "v1"
"""The first line of each file of Spark's logs of offsets and commits."""


def check_tap(address: str | None) -> None:
    """Check that this user may tap the bus.

    Raises:
        PermanentError: the bus refuses it.
        SbusError, OSError: the bus cannot be reached.
    """
    try:
        with Bus.connect(address, timeout=_SECONDS) as bus, bus.tap(b"none"):
            pass
    except RemoteRefusal as error:
        if error.code not in {ErrorCode.EPERM, ErrorCode.EACCES}:
            raise
        raise PermanentError(f"cannot tap the bus: {error.said}. Allow this user with tap under [rights] in sbusd.toml(5)") from None


def check_checkpoint(checkpoint: Path) -> None:
    """Check the files of *checkpoint* that Spark reads when a query starts. A missing directory is valid.

    Raises:
        PermanentError: one of them is damaged.
        OSError: it cannot be read.
    """
    if (checkpoint / "metadata").exists():
        query_id(checkpoint)
    for log in ("offsets", "commits"):
        newest = max(
            (path for path in (checkpoint / log).glob("[0-9]*") if path.name.isdecimal()), key=lambda path: int(path.name), default=None
        )
        if newest is None:
            continue
        try:
            version, *lines = newest.read_text("utf-8").splitlines()
            values = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):
            raise _damaged(checkpoint, newest) from None
        if version != _VERSION or not values:
            raise _damaged(checkpoint, newest)


def query_id(checkpoint: Path) -> str:
    """Return the id of the query that uses *checkpoint*. Raises PermanentError if there is none."""
    path = checkpoint / "metadata"
    try:
        return str(json.loads(path.read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(checkpoint, path) from None


def _damaged(checkpoint: Path, path: Path) -> PermanentError:
    """Return the error about the file *path*."""
    return PermanentError(f"{path}: damaged checkpoint. Remove the directory {checkpoint} to begin a new one; no counter is lost")
