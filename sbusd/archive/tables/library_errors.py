"""Errors of the Delta library in one line, and operations that are repeated because the library does not. Spec: sbus-pipeline(8)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from sbusd.archive.files import TablesError
from sbusd.archive.storage.attempts import Attempts, advice_about
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.tables.location import table_uri

CONFLICT = "another program has changed the table during this run. The published tables are complete. Run again"
REPLACED = "another program has replaced this commit: the server ignores If-None-Match. Use a server that obeys it, and run again"

_IS_STORAGE = re.compile(r"os error \d|Generic S3 error|Permission")
"""What the library says if the storage failed, and not the table or the comparison with other commits."""

_NOT_REPEATED = re.compile(r"request or response body error")
"""What the library says if the connection ended within a response. It repeats requests that fail otherwise ten times itself."""

_NOISE = re.compile(r"(?:\x1b\[[0-9;]*m|[\x00-\x1f↳])+")

_Result = TypeVar("_Result")


class UnfinishedError(OSError):
    """The storage failed, and the operation had no effect, so that it can be repeated."""


def repeat(root: ArchivePath, name: str, what: str, operation: Callable[[], _Result]) -> _Result:
    """Return the result of *operation*, which does *what* with the table *name*, and can be repeated. Repetitions are counted and reported.

    Raises:
        StorageError: the object store failed several times.
        Exception: all other errors of *operation*.
    """
    if isinstance(root, Path):
        return operation()
    failed: list[BaseException] = []

    def attempt() -> _Result | None:
        try:
            return operation()
        except (DeltaError, OSError) as error:
            if isinstance(error, UnfinishedError) or _NOT_REPEATED.search(str(error)):
                raise OSError(reason_of(error)) from None
            failed.append(error)
            return None

    result = Attempts().run(what, root / name, attempt)
    if failed:
        raise failed[0]
    return result  # type: ignore[return-value]  # None is a result too


def is_storage_error(error: BaseException) -> bool:
    """Return whether *error* says that the storage failed."""
    return _IS_STORAGE.search(str(error)) is not None


@contextlib.contextmanager
def errors_of(root: ArchivePath, name: str, what: str) -> Iterator[None]:
    """Translate errors of the library that happen when *what* is done to the table *name*: to write it, to read it. Raises TablesError."""
    uri = table_uri(root, name)
    try:
        yield
    except CommitFailedError as error:
        reason = f"cannot {what} table: {reason_of(error)}" if is_storage_error(error) else CONFLICT
        raise TablesError(uri, reason) from None
    except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
        raise TablesError(uri, f"cannot {what} table: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Return the reason in *error* in one line: that of the operating system, if there is one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    if (match := re.search(r"([A-Z][a-zA-Z ,'-]+) \(os error \d+\)", text)) is not None:
        path = re.search(r"(?:Object at location|file) (\S+) not found", text)
        return f"{path[1]}: {match[1]}" if path else match[1]
    lines = [line for line in (_NOISE.sub(" ", each).strip() for each in text.splitlines()) if line]
    if not lines:
        return type(error).__name__
    # The last line has the status, or says what happened to the connection.
    reason = f"{lines[0]}: {lines[-1]}" if len(lines) > 1 and _IS_STORAGE.search(lines[0]) else lines[0]
    return reason + advice_about(text)
