"""Locations: each has one spelling, and no name leads out of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sbus_archive.storage.location import (
    LocationError,
    RemotePath,
    endpoint_of,
    is_remote,
    parse_location,
    parse_tables_location,
    table_uri,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/a/b%20c", Path("/a/b%20c")),
        ("relative", Path("relative")),
        ("file:/a%20b", Path("/a b")),
        ("file:/a", Path("/a")),
        ("s3://bucket", RemotePath("s3", "bucket", "")),
        ("s3://my.bucket-1/a/date=2026-11-20/", RemotePath("s3", "my.bucket-1", "a/date=2026-11-20")),
        ("hdfs://name-node:8020/srv/record", RemotePath("hdfs", "name-node:8020", "srv/record")),
    ],
)
def test_a_location_is_read(text: str, found: Path | RemotePath) -> None:
    assert parse_location(text) == found
    assert is_remote(found) == isinstance(found, RemotePath)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("a\0b", "it contains NUL"),
        ("file://host/a", "a file URL has the form file:/DIR"),
        ("http://x/y", "unknown scheme 'http'; use a directory, s3://BUCKET/PREFIX or hdfs://HOST:PORT/PATH"),
        ("s3:///a", "invalid bucket ''"),
        ("s3://Bucket/a", "invalid bucket 'Bucket'"),
        ("s3://a..b/c", "invalid bucket 'a..b'"),
        ("s3://bucket/a/../b", "invalid name 'a/../b' in an object store"),
        ("s3://bucket/a//b", "invalid name 'a//b'"),
        ("s3://bucket/%2e%2e/b", "invalid name '%2e%2e/b'"),
        ("s3://bucket/a?x=1", "has no query and no fragment"),
        ("hdfs://host:port/a", "invalid host 'host:port'"),
        ("s3://[x/a", "not a URL"),
    ],
)
def test_an_invalid_location_is_an_error(text: str, says: str) -> None:
    with pytest.raises(LocationError) as caught:
        parse_location(text)
    assert says in str(caught.value)


def test_a_password_in_a_location_is_refused_and_not_shown() -> None:
    with pytest.raises(LocationError, match="must not contain credentials") as caught:
        parse_location("s3://key:pass-word@bucket/a")
    assert "pass-word" not in str(caught.value)


_ESCAPES = ("..", "../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/./b", "%2e%2e/x", "a\nb", "a\\b", "é", "a/")


@pytest.mark.parametrize("name", _ESCAPES)
def test_no_name_leads_out_of_a_location(name: str) -> None:
    with pytest.raises(LocationError, match="in an object store"):
        RemotePath("s3", "bucket", "a") / name


def test_a_remote_path_has_the_parts_of_a_path() -> None:
    top = RemotePath("s3", "bucket", "")
    path = top / "index" / "x.json"
    assert (str(path), path.name, path.parent, path.parent.parent) == ("s3://bucket/index/x.json", "x.json", top / "index", top)
    assert path.resolve() == pickle.loads(pickle.dumps(path)) == path


def test_the_endpoint_is_that_of_s3_or_of_all_services() -> None:
    both = {"AWS_ENDPOINT_URL_S3": "https://one", "AWS_ENDPOINT_URL": "https://two"}
    assert (endpoint_of(both), endpoint_of({"AWS_ENDPOINT_URL": "https://two"}), endpoint_of({})) == ("https://one", "https://two", "")


@pytest.mark.parametrize(
    ("text", "location", "uri"),
    [
        ("/srv/tables", Path("/srv/tables"), "/srv/tables/users"),
        ("tables", Path("tables"), str(Path("tables/users").absolute())),
        ("s3://fleet", RemotePath("s3", "fleet", ""), "s3://fleet/users"),
        ("s3://fleet/a/b/", RemotePath("s3", "fleet", "a/b"), "s3://fleet/a/b/users"),
    ],
)
def test_a_location_is_parsed(text: str, location: object, uri: str) -> None:
    found = parse_tables_location(text)
    assert (found, table_uri(found, "users")) == (location, uri)


@pytest.mark.parametrize("text", ["s3://", "s3://x/y?z", "s3a://x/y", "https://x/y", "hdfs://a/b"])
def test_other_locations_are_errors(text: str) -> None:
    with pytest.raises(LocationError, match="invalid location"):
        parse_tables_location(text)


def test_hdfs_says_what_tables_need() -> None:
    with pytest.raises(LocationError, match="tables need a directory, or s3://BUCKET/PREFIX"):
        parse_tables_location("hdfs://a/b")
