"""What a report says in three lines."""

from __future__ import annotations

from pathlib import Path

from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.publication import prepare_folder
from sbusd.archive.tables.reader import read_tables
from sbusd.report.digest import digest_of
from sbusd.report.summary import summary_of
from tests.support.published import publish_record
from tests.support.records import NOON, message


def test_three_lines_say_what_there_was(tmp_path: Path) -> None:
    request = message(3, "rpc/echo")._replace(call_role="request", call_id=1, call_cmd="echo")
    loss, denial = (message(number)._replace(kind=kind, lost=7) for number, kind in ((4, "loss"), (5, "denial")))
    rows = [message(1, "a/b/c"), message(2, "a/b"), request, loss, denial]
    root = publish_record(tmp_path, {"alpha": rows})
    assert summary_of(digest_of(read_tables(root), lambda _: None, 1)) == [
        "2026-11-20 12:00 to 2026-11-20 12:00 UTC on alpha: 5 rows",
        "3 messages of 3 bytes to 6 recipients; busiest key a/b, busiest user uid 1000",
        "1 call, 1 failed; 7 messages lost, 7 refusals; nothing is known to be missing",
    ]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    root = publish_record(tmp_path, {host: [message(1)] for host in "abcd"}, absent=("x",))
    lines = summary_of(digest_of(read_tables(root), lambda _: None, 1))
    assert lines[0].endswith("on a, b, c and 1 more: 4 rows")
    assert lines[2].endswith("parts of the record are missing")


def test_hosts_that_stopped_are_said(tmp_path: Path) -> None:
    """Of four hosts three have no row in the last five hours."""
    late = message(9, ts=NOON + 5 * HOUR_NS + 1)
    root = publish_record(
        tmp_path, {"a": [message(1), *(late._replace(seq=9 + n, ts=NOON + n * HOUR_NS) for n in range(1, 6))], "b": [message(1)]}
    )
    lines = summary_of(digest_of(read_tables(root), lambda _: None, 1))
    assert lines[2].endswith("parts of the record are missing; no rows of b for 4 hours")


def test_no_record_is_said(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    lines = summary_of(digest_of(read_tables(tmp_path), lambda _: None, 1))
    assert lines[:2] == ["no rows in this period", "no messages"]
