"""Errors of the Delta library become one line that says what failed, and why; what the library does not repeat is repeated here."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from sbusd.archive.files import TablesError
from sbusd.archive.storage import attempts
from sbusd.archive.storage.attempts import StorageError
from sbusd.archive.storage.location import RemotePath
from sbusd.archive.tables.library_errors import UnfinishedError, errors_of, is_storage_error, repeat

STORE = RemotePath("s3", "fleet", "x")

CONFLICT = "Failed to commit transaction: Commit failed: a concurrent transactions added new data.\nHelp: This transaction's query"
FULL = "Generic error: Unable to write\n  \x1b[31m↳\x1b[0m No space left on device (os error 28)\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            CommitFailedError(CONFLICT),
            "another program has changed the table during this run. The published tables are complete. Run again",
        ),
        (CommitFailedError(FULL), "cannot write table: No space left on device"),
        (DeltaError(FULL), "cannot write table: No space left on device"),
        (OSError(errno.EACCES, "Permission denied"), "cannot write table: Permission denied"),
        (CommitFailedError("Generic S3 error: timeout"), "cannot write table: Generic S3 error: timeout"),
        (OSError("Generic S3 error\n ↳ after 10 retries\n  ↳ 503 Slow Down\n"), "cannot write table: Generic S3 error: 503 Slow Down"),
        (
            FileNotFoundError("Object at location /a/x.parquet not found\n \x1b[31m↳\x1b[0m No such file or directory (os error 2)"),
            "cannot write table: /a/x.parquet: No such file or directory",
        ),
        (DeltaError("Kernel error: \x1b]0;x\x07Json error\n   0: <unknown>"), "cannot write table: Kernel error:  ]0;x Json error"),
        (DeltaError(""), "cannot write table: DeltaError"),
    ],
)
def test_an_error_is_one_line(error: Exception, says: str) -> None:
    with pytest.raises(TablesError) as caught, errors_of(STORE, "users", "write"):
        raise error
    assert str(caught.value) == f"s3://fleet/x/users: {says}"


TRUNCATED = "Kernel error -> Generic S3 error\n \x1b[31m↳\x1b[0m request or response body error\n \x1b[31m↳\x1b[0m end of file\n"


def test_a_response_that_was_cut_is_repeated_and_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(attempts, "FIRST_DELAY_SECONDS", 0.001)
    errors: list[Exception] = [UnfinishedError(TRUNCATED), OSError(TRUNCATED), DeltaError(TRUNCATED)]

    def operation() -> int | None:
        if errors:
            raise errors.pop()
        return None

    assert repeat(STORE, "users", "open", operation) is None
    assert capsys.readouterr().err == (
        "sbus: retried to open s3://fleet/x/users: Kernel error -> Generic S3 error: end of file; retries so far: 1\n"
    )
    errors += [OSError(TRUNCATED)] * attempts.ATTEMPTS
    with pytest.raises(StorageError, match=r"s3://fleet/x/users: cannot open: .* \(attempts: 6\)"):
        repeat(STORE, "users", "open", operation)


@pytest.mark.parametrize("root", [Path("/a"), STORE])
@pytest.mark.parametrize("error", [CommitFailedError("conflict"), OSError("Generic S3 error"), ValueError("x"), FileNotFoundError("y")])
def test_other_errors_are_raised_at_once(root: Path | RemotePath, error: Exception) -> None:
    calls = []

    def operation() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        repeat(root, "users", "open", operation)
    assert (caught.value, len(calls)) == (error, 1)


def test_a_failure_of_the_storage_is_known() -> None:
    assert is_storage_error(OSError(TRUNCATED))
    assert not is_storage_error(DeltaError("Invalid JSON in log"))
