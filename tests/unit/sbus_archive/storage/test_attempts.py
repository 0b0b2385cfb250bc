"""Attempts: failures that pass are repeated and counted, refusals are not repeated, and no credential is shown."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from sbus_archive.storage.attempts import (
    ATTEMPTS,
    FIRST_DELAY_SECONDS,
    LONGEST_DELAY_SECONDS,
    Attempts,
    StorageError,
    is_reported,
    reason_of,
)
from sbus_archive.storage.location import RemotePath

PATH = RemotePath("s3", "bucket", "x")


def failing(times: int, error: OSError) -> Callable[[], str]:
    """Return an operation that fails *times* times."""
    left = [error] * times

    def operation() -> str:
        if left:
            raise left.pop()
        return "done"

    return operation


def test_a_failure_that_passes_is_repeated_and_counted() -> None:
    lines: list[str] = []
    delays: list[float] = []
    attempts = Attempts(lines.append, sleep=delays.append)
    assert attempts.run("read", PATH, failing(ATTEMPTS - 1, OSError("AWS Error SLOW_DOWN (HTTP status 503)"))) == "done"
    assert attempts.retries == len(delays) == ATTEMPTS - 1
    assert lines == ["retried to read s3://bucket/x: AWS Error SLOW_DOWN (HTTP status 503); retries so far: 1"]
    assert all(0 <= delay <= min(FIRST_DELAY_SECONDS * 2**place, LONGEST_DELAY_SECONDS) for place, delay in enumerate(delays))


def test_the_number_of_attempts_is_bounded() -> None:
    attempts = Attempts(lambda _: None, sleep=lambda _: None)
    with pytest.raises(StorageError) as caught:
        attempts.run("read", PATH, failing(100, OSError("curlCode: 7, Couldn't connect to server")))
    assert str(caught.value) == f"s3://bucket/x: cannot read: curlCode: 7, Couldn't connect to server (attempts: {ATTEMPTS})"
    assert attempts.retries == ATTEMPTS - 1


@pytest.mark.parametrize(
    "text",
    [
        "AWS Error ACCESS_DENIED during HeadObject operation: No response body.",
        "AWS Error NO_SUCH_BUCKET during PutObject operation",
        "AWS Error UNKNOWN (HTTP status 403) during PutObject operation",
    ],
)
def test_a_refusal_is_not_repeated(text: str) -> None:
    attempts = Attempts(sleep=lambda _: None)
    with pytest.raises(StorageError, match="s3://bucket/x: cannot write: AWS Error"):
        attempts.run("write", PATH, failing(1, OSError(text)))
    assert attempts.retries == 0


def test_a_missing_object_is_not_repeated() -> None:
    attempts = Attempts(sleep=lambda _: None)
    with pytest.raises(FileNotFoundError):
        attempts.run("read", PATH, failing(1, FileNotFoundError("x")))
    assert attempts.retries == 0


def test_a_reason_is_one_line_without_credentials() -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cr3t", "AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SESSION_TOKEN": "t0ken"}
    assert reason_of(OSError("key AKIA1 s3cr3t\x1b t0ken\nmore"), secrets) == (
        "key (AWS_ACCESS_KEY_ID) (AWS_SECRET_ACCESS_KEY)\\x1b (AWS_SESSION_TOKEN)"
    )
    assert reason_of(OSError(), {}) == "OSError"
    assert len(reason_of(OSError("x" * 10_000), {})) < 400


@pytest.mark.parametrize(("sign", "advice"), [("ExpiredToken", "AWS_SHARED_CREDENTIALS_FILE"), ("RequestTimeTooSkewed", "timedatectl")])
def test_an_error_with_a_remedy_names_it(sign: str, advice: str) -> None:
    text = f"AWS Error UNKNOWN (HTTP status 400) during PutObject operation: Unable to parse ExceptionName: {sign} Message: x"
    attempts = Attempts(sleep=lambda _: None)
    with pytest.raises(StorageError, match=advice):
        attempts.run("write", PATH, failing(1, OSError(text)))
    assert attempts.retries == 0


def test_events_are_reported_ever_more_rarely() -> None:
    assert [count for count in range(1, 2_000) if is_reported(count)] == [1, 10, 100, 1_000]


def test_an_error_survives_the_way_from_an_executor() -> None:
    error = pickle.loads(pickle.dumps(StorageError(PATH, "why")))
    assert (type(error), str(error), error.path) == (StorageError, "s3://bucket/x: why", PATH)
