"""Credentials of an object store that expire while a program runs: which are read again, and when. Spec: sbus-record(5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_archive.storage.attempts import StorageError
from sbus_archive.storage.files import TablesError
from sbus_archive.storage.location import RemotePath
from sbus_archive.storage.objects import ObjectStore
from sbus_archive.storage.store import store_of
from sbus_archive.tables.delta import open_table
from tests.support.object_stores import KeyServer

ROOT = RemotePath("s3", "bucket-of-credentials", "x")
EXPIRED = "The credentials have expired. Write new ones to the file of AWS_SHARED_CREDENTIALS_FILE"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyServer]:
    """A server that accepts the key FIRST; no variable has credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CA_BUNDLE", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with KeyServer("FIRST") as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.address)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield made


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of credentials, as tools write it that renew them."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    return path


def renew(path: Path, key: str) -> None:
    """Write the credentials *key*."""
    path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s\naws_session_token = t\n")


def test_the_file_is_read_again_after_a_refusal(server: KeyServer, file: Path) -> None:
    """The client of PyArrow alone reads it once, and used the old credentials for hours."""
    renew(file, "FIRST")
    store = store_of(ROOT)
    assert isinstance(store, ObjectStore)
    assert not store.exists("a")
    server.key = "SECOND"
    with pytest.raises(StorageError, match=EXPIRED):
        store.names("folder")
    with pytest.raises(StorageError, match="the credentials may have expired"):
        store.exists("a")
    renew(file, "SECOND")
    assert not store.exists("a")
    assert store.attempts.retries == 0


def test_tables_use_the_file_too(server: KeyServer, file: Path) -> None:
    renew(file, "FIRST")
    assert open_table(ROOT, "users") is None
    server.key = "SECOND"
    with pytest.raises(TablesError, match=EXPIRED):
        open_table(ROOT, "users")
    renew(file, "SECOND")
    assert open_table(ROOT, "users") is None
