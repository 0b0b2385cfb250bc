"""Options of the Data Source, and the conditions on rows that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.options import CHUNK_ROWS, Condition, Options
from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.record.schema import batch_of
from tests.support.records import NOON, message


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
        ({"path": "s3a://x/y"}, "invalid option path: invalid location 's3a://x/y': unknown scheme 's3a'; use a directory, s3://"),
        ({"path": "s3://bucket/../y"}, "invalid option path: invalid name '../y'"),
        ({"segments": "date=2026-11-20/hour=12/host=../1.parquet"}, "invalid option segments: invalid segment path"),
        ({"checkpointLocation": "s3a://x/y"}, "option checkpointLocation"),
        ({"outbox": ""}, "invalid option outbox ''"),
    ],
)
def test_invalid_options_are_reported(given: dict[str, str], says: str) -> None:
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


NAME = "date=2026-11-20/hour=12/host=alpha/00000000000000000001.parquet"


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from((">=", "<")), st.integers(-1, 10))
def test_rows_and_segments_are_chosen_by_time(times: list[int], sign: Literal[">=", "<"], bound: int) -> None:
    condition = Condition("ts", sign, (bound,))
    table = pa.Table.from_batches([batch_of([message(number, ts=time) for number, time in enumerate(times)])])
    expected = [time for time in times if (time >= bound if sign == ">=" else time < bound)]
    assert table.filter(condition.expression()).column("ts").to_pylist() == expected
    assert condition.may_hold(_entry(min(times), max(times))) is bool(expected)


def test_rows_are_chosen_by_kind() -> None:
    rows = [message(1), message(2)._replace(kind="denial"), message(3)._replace(kind="loss")]
    table = pa.Table.from_batches([batch_of(rows)])
    assert table.filter(Condition("kind", "in", ("loss", "message")).expression()).column("seq").to_pylist() == [1, 3]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition("host", "in", ("alpha", "beta")), True),
        (Condition("host", "in", ("beta",)), False),
        (Condition("kind", "in", ("denial",)), False),
        (Condition("kind", "in", ("denial", "message")), True),
    ],
)
def test_segments_are_chosen_by_their_entry(condition: Condition, holds: bool) -> None:
    assert condition.may_hold(_entry(0, 9)) is holds


def test_a_segment_with_unknown_kinds_is_opened() -> None:
    assert Condition("kind", "in", ("denial",)).may_hold(IndexEntry(NAME, "2026-11-20", 12, "alpha", 10, 1, "", 0, 9, 1, 20))


def _entry(min_ts: int, max_ts: int) -> IndexEntry:
    return IndexEntry(NAME, "2026-11-20", 12, "alpha", 10, 1, "", min_ts, max_ts, 1, 20, {"message": 10})
