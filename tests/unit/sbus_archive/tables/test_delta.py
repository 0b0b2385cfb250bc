"""Tables are opened with the settings of all other clients of an object store."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError

from sbus_archive.storage import attempts
from sbus_archive.storage.attempts import StorageError, UnsupportedClientError
from sbus_archive.storage.files import TablesError
from sbus_archive.storage.location import RemotePath
from sbus_archive.tables import delta
from sbus_archive.tables.data_files import folder_of
from sbus_archive.tables.delta import LOG, UnfinishedError, errors_of, is_due, is_storage_error, open_table, repeat, storage_options
from sbus_archive.tables.storage import open_published, read_tables
from tests.support.table_versions import HOUR, open_writer, publish_version

STORE = RemotePath("s3", "fleet", "x")


def test_a_table_that_does_not_exist_is_none(tmp_path: Path) -> None:
    assert open_table(tmp_path, "users") is None
    (tmp_path / "users").mkdir()
    assert open_table(tmp_path, "users") is None


def test_the_library_has_the_settings_of_all_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", "SSL_CERT_FILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://other.example")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    assert storage_options(Path("/a")) is None
    assert storage_options(STORE) == {
        "aws_region": "us-east-1",
        "aws_endpoint": "http://127.0.0.1:1",
        "aws_access_key_id": "key",
        "aws_secret_access_key": "secret",
        "allow_http": "true",
    }
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    assert (storage_options(STORE) or {})["allow_http"] == "false"


def test_certificates_that_the_library_would_ignore_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/a.pem")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with pytest.raises(UnsupportedClientError, match=r"deltalake does not read AWS_CA_BUNDLE\. Set SSL_CERT_FILE to the same file"):
        storage_options(STORE)
    monkeypatch.setenv("SSL_CERT_FILE", "/a.pem")
    assert storage_options(STORE) is not None


DAY = 86_400


def test_a_table_is_due_once_in_a_number_of_commits() -> None:
    assert [is_due(before, before + 1) for before in range(17)] == [*[False] * 15, True, False]
    assert is_due(3, 40)


def test_replaced_files_stay_for_a_day_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 9):
        publish_version(tmp_path, number)
    folder = tmp_path / "users" / folder_of(HOUR)
    assert len(list(folder.iterdir())) == 8
    before = read_tables(tmp_path)
    orphan = folder / "part-orphan.parquet"
    orphan.write_bytes(b"of a killed run")
    old = time.time() - 2 * DAY
    os.utime(orphan, (old, old))
    monkeypatch.setattr(delta, "COMMITS", 1)
    writer = open_writer(tmp_path)
    writer._begun["users"] -= 1
    writer.maintain()
    assert not orphan.exists()
    # What readers of a day ago need is kept.
    assert len(list(folder.iterdir())) == 8
    assert read_tables(tmp_path).tables == before.tables


def test_the_log_is_shortened_but_published_versions_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "COMMITS", 4)
    publish_version(tmp_path, 1)
    old = time.time() - 3 * DAY
    for number in range(3, 23):
        publish_version(tmp_path, number)
        for path in tmp_path.rglob(f"{LOG}/*"):
            os.utime(path, (old, old))
    logs = {path.name: len(list((path / LOG).glob("*.json"))) for path in tmp_path.iterdir() if (path / LOG).is_dir()}
    assert max(logs.values()) < 20
    assert len(list((tmp_path / "users" / LOG).glob("*.checkpoint.parquet"))) >= 1
    assert read_tables(tmp_path).tables["users"].column("lost").to_pylist() == [22, 22]


def test_a_reader_with_a_snapshot_survives_maintenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opened the published hours before; the versions recorded there can be read for a day."""
    monkeypatch.setattr(delta, "COMMITS", 2)
    publish_version(tmp_path, 1)
    reader = open_published(tmp_path)
    for number in range(3, 13):
        publish_version(tmp_path, number)
    monkeypatch.setattr("sbus_archive.tables.storage.open_published", lambda _root: reader)
    found = read_tables(tmp_path)
    assert found.tables["users"].column("lost").to_pylist() == [1, 1]
    assert {manifest.made for manifest in found.manifests.values()} == {1}


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
