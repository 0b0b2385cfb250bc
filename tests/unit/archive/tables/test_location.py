"""The location of tables is a directory or a prefix in S3, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.storage.location import LocationError, RemotePath
from sbusd.archive.tables.location import parse_tables_location, table_uri


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
