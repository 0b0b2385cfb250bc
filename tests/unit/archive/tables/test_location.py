"""A location is a directory or a prefix in an object store, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.tables.location import parse_location, storage_options, table_uri


@pytest.mark.parametrize(
    ("text", "location", "uri"),
    [
        ("/srv/tables", Path("/srv/tables"), "/srv/tables/users"),
        ("s3:/x", Path("s3:/x"), str(Path("s3:/x/users").absolute())),
        ("s3://fleet", "s3://fleet", "s3://fleet/users"),
        ("s3://fleet/a/b/", "s3://fleet/a/b", "s3://fleet/a/b/users"),
    ],
)
def test_a_location_is_parsed(text: str, location: object, uri: str) -> None:
    found = parse_location(text)
    assert (found, table_uri(found, "users")) == (location, uri)


@pytest.mark.parametrize("text", ["s3://", "S3://x/y", "s3://x//y", "s3://x/y?z", "s3a://x/y", "https://x/y", "hdfs://a/b"])
def test_other_locations_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="use a directory, or s3://BUCKET/PREFIX"):
        parse_location(text)


def test_only_a_server_without_tls_needs_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert storage_options("s3://a/b") == {"allow_http": "true"}
    assert storage_options(Path("/a")) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://store.example")
    assert storage_options("s3://a/b") == {}
