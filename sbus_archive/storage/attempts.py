"""Repeats failed operations of an object store: a bounded number of times, after increasing random delays, and counted."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_archive.storage.location import RemotePath

ATTEMPTS = 6
"""Maximum number of attempts of one operation: with the delays about ten seconds, which a restart of a server takes."""

FIRST_DELAY_SECONDS = 0.2
"""Maximum delay before the second attempt. It doubles each time; the delay is random, so that many hosts do not retry together."""

LONGEST_DELAY_SECONDS = 5.0

_MAX_REASON = 300
"""Maximum length of the reason in characters: the server writes it."""

_STATUS = re.compile(r"HTTP status (\d{3})")
_PERMANENT = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|NO_SUCH_BUCKET|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT"
    r"|MISSING_AUTHENTICATION_TOKEN|INVALID_SIGNATURE)"
)
_ADVICE = {
    "ExpiredToken": "The credentials have expired. Write new ones to the file of AWS_SHARED_CREDENTIALS_FILE, which is read again, or set "
    "AWS_* and restart",
    "(HTTP status 400) during HeadObject": "The server gives no reason; the credentials may have expired, see sbus-record(5)",
    "RequestTimeTooSkewed": "The clock of this machine differs from that of the server: timedatectl",
}
"""What to do about errors of S3, by a part of their text."""

_TEMPORARY_STATUS = frozenset({"408", "409", "425", "429"})
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")

_Result = TypeVar("_Result")


class StorageError(SbusError):
    """An object store cannot be used, or refused an operation. ``path`` is the object, ``reason`` says why."""

    def __init__(self, path: RemotePath, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[StorageError], tuple[RemotePath, str]]:
        return type(self), (self.path, self.reason)


class UnsupportedClientError(StorageError):
    """The installed PyArrow does not have the client of a store, or what the environment requires of it."""


class Attempts:
    """Runs operations, and counts what was repeated."""

    def __init__(
        self,
        report: Callable[[str], None] | None = None,
        *,
        progress: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Pass a line about each 1st, 10th, 100th retry to *report*; without it, print it to standard error.

        *progress* is called before each attempt.
        """
        self.retries = 0
        """Number of attempts that failed and were repeated."""
        self.refused: Callable[[], None] = lambda: None
        """Called when the store has refused an operation, before that raises."""
        self._report = report or _print
        self._sleep = sleep
        self._progress = progress

    def run(self, what: str, path: RemotePath, operation: Callable[[], _Result]) -> _Result:
        """Return the result of *operation*, an attempt to do *what* with *path*.

        Raises:
            FileNotFoundError: the object does not exist.
            StorageError: all attempts failed, or the store refused the operation.
        """
        attempt = 1
        while True:
            self._progress()
            try:
                return operation()
            except FileNotFoundError:
                raise
            except OSError as error:
                reason = reason_of(error)
                if _is_permanent(reason):
                    self.refused()
                    raise StorageError(path, f"cannot {what}: {reason}") from None
                if attempt >= ATTEMPTS:
                    raise StorageError(path, f"cannot {what}: {reason} (attempts: {attempt})") from None
            self.retries += 1
            if is_reported(self.retries):
                self._report(f"retried to {what} {path}: {reason}; retries so far: {self.retries}")
            self._sleep(random.uniform(0, min(FIRST_DELAY_SECONDS * 2 ** (attempt - 1), LONGEST_DELAY_SECONDS)))  # noqa: S311 - no secret
            attempt += 1


def is_reported(count: int) -> bool:
    """Return whether event number *count* is reported: the 1st, 10th, 100th and so on."""
    return str(count).rstrip("0") == "1"


def reason_of(error: BaseException, environ: Mapping[str, str] = os.environ) -> str:
    """Return the message of *error* in one line, without the credentials in *environ*."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    for name in _SECRETS:
        if value := environ.get(name):
            reason = reason.replace(value, f"({name})")
    return printable(reason, _MAX_REASON) + advice_about(reason)


def advice_about(reason: str) -> str:
    """Return what to do about the error *reason* of S3, to be appended to it; empty if that is unknown."""
    return next((f". {advice}" for sign, advice in _ADVICE.items() if sign in reason), "")


def _is_permanent(reason: str) -> bool:
    """Return whether another attempt would fail too: the request is refused, not the server unavailable."""
    if _PERMANENT.search(reason):
        return True
    status = _STATUS.search(reason)
    return status is not None and status[1][0] == "4" and status[1] not in _TEMPORARY_STATUS


def _print(line: str) -> None:
    """Print *line* to standard error."""
    print(f"sbus: {line}", file=sys.stderr, flush=True)
