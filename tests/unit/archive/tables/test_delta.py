"""Tables are opened with the settings of all other clients of an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.storage.attempts import UnsupportedClientError
from sbusd.archive.storage.location import RemotePath
from sbusd.archive.tables.delta import open_table, storage_options

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
