"""Options: each wrong one is named, and what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.record.layout import HOUR_NS
from sbusd.pipeline.errors import SourceError
from sbusd.pipeline.source.filters import Condition
from sbusd.pipeline.source.options import CHUNK_ROWS, Options
from tests.support.records import NOON


def test_nothing_given() -> None:
    assert Options.parse({}) == Options()
    assert Options().chunk_rows == CHUNK_ROWS


def test_all_given_in_any_case() -> None:
    given = {
        "PATH": "/a%20?#b",
        "Address": "/s",
        "key": "a/",
        "MAXROWSPERTRIGGER": "5",
        "chunkrows": "7",
        "indoubt": "skip",
        "token": "t",
        "Unreadable": "skip",
    }
    found = Options.parse({**given, "checkpointLocation": "file:/c%20"})
    assert found == Options(Path("/a%20?#b"), "/s", b"a/", (), 5, Path("/c /sbus-outbox"), "t", 7, "skip", Path("/c "), "skip")
    assert Options.parse({"outbox": "/o", "checkpointLocation": "/c"}).outbox == Path("/o")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"hots": "x"}, "unknown option 'hots': the options of format sbus are address, checkpointLocation, chunkRows,"),
        ({"maxRowsPerTrigger": "0"}, "invalid option maxRowsPerTrigger '0': use an integer, at least 1"),
        ({"chunkRows": "-1"}, "invalid option chunkRows '-1'"),
        ({"maxRowsPerTrigger": "9" * 30}, "use an integer, at least 1"),
        ({"inDoubt": "maybe"}, "invalid option inDoubt 'maybe': use repeat or skip"),
        ({"unreadable": "ignore"}, "invalid option unreadable 'ignore': use fail or skip"),
        ({"key": "a\0b"}, "invalid option key: a pattern cannot contain NUL"),
        ({"host": "a,../b"}, "invalid option host 'a,../b'"),
        ({"kind": "message,mesage"}, "invalid option kind 'message,mesage': use comma-separated names"),
        ({"since": "yesterday"}, "invalid option since 'yesterday': use a date or time in UTC, such as"),
        ({"path": "hdfs://x/y"}, "invalid option path 'hdfs://x/y': use a directory of this machine"),
        ({"checkpointLocation": "s3a://x/y"}, "option checkpointLocation"),
        ({"outbox": ""}, "invalid option outbox ''"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], says: str) -> None:
    with pytest.raises(SourceError) as caught:
        Options.parse(given)
    assert says in str(caught.value)


def test_rows_are_chosen_by_options() -> None:
    found = Options.parse(
        {"host": "alpha, b-2", "kind": "denial", "since": "2026-11-20", "until": "2026-11-20T13:00:00.5+01:00"}
    ).conditions
    assert found == (
        Condition("host", "in", ("alpha", "b-2")),
        Condition("kind", "in", ("denial",)),
        Condition("ts", ">=", (NOON - 12 * HOUR_NS,)),
        Condition("ts", "<", (NOON + 5 * 10**8,)),
    )


def test_a_query_is_known_by_its_checkpoint(tmp_path: Path) -> None:
    options = Options.parse({"checkpointLocation": str(tmp_path)})
    with pytest.raises(SourceError, match="not the checkpoint of a query"):
        options.query()
    (tmp_path / "metadata").write_text('{"id":"../../etc/passwd"}')
    with pytest.raises(SourceError, match="not the checkpoint of a query"):
        options.query()
    (tmp_path / "metadata").write_text('{"id":"6e7cff9a-0000-4000-8000-1e1ed4c0ffee"}')
    assert options.query() == "6e7cff9a-0000-4000-8000-1e1ed4c0ffee"
    assert Options.parse({"outbox": "/o"}).query() == "query"
