"""Index entries are read completely or not at all, and damage is reported."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from sbus_archive.record.index import (
    DAYS,
    MAX_DAY_BYTES,
    DayName,
    encode_day,
    hour_of_entry,
    list_days,
    list_index,
    read_day,
    read_entry,
    read_index,
    segment_names,
    segment_of_entry,
    write_entry,
)
from sbus_archive.record.layout import IndexEntry, SegmentName
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.store import LocalStore
from tests.support.records import NOON


def entry(first_seq: int = 1, host: str = "alpha") -> IndexEntry:
    name = SegmentName.at(NOON, host, first_seq)
    return IndexEntry(
        path=name.path,
        date=name.date,
        hour=name.hour,
        host=host,
        rows=3,
        bytes=100,
        sha256="0" * 64,
        min_ts=NOON,
        max_ts=NOON + 2,
        first_seq=first_seq,
        last_seq=first_seq + 2,
        kinds={"message": 2, "gap": 1},
        missing=5,
    )


def test_an_entry_survives_encoding(tmp_path: Path) -> None:
    write_entry(tmp_path, entry())
    assert list(read_index(tmp_path)) == [entry()]


def test_a_later_entry_replaces_the_earlier(tmp_path: Path) -> None:
    write_entry(tmp_path, entry())
    gone = dataclasses.replace(entry(), removed_at=NOON, removed_because="quota")
    write_entry(tmp_path, gone)
    (read,) = read_index(tmp_path)
    assert read == gone
    assert read.is_removed


def test_entries_come_in_order_and_drafts_not_at_all(tmp_path: Path) -> None:
    for first_seq, host in [(20, "beta"), (3, "beta"), (100, "alpha")]:
        write_entry(tmp_path, entry(first_seq, host))
    (tmp_path / "index" / ".draft.json").write_text("{")
    (tmp_path / "index" / ".draft.json.tmp").write_text("{")
    assert [(each.host, each.first_seq) for each in read_index(tmp_path)] == [("alpha", 100), ("beta", 3), ("beta", 20)]


def test_an_empty_archive_has_no_entries_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    assert not list(read_index(tmp_path))
    with pytest.raises(RecordError, match="not an archive: no such directory"):
        list(read_index(tmp_path / "nowhere"))


def _changed(**changes: object) -> str:
    return json.dumps({**json.loads(entry().to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid index entry: not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "not a JSON object with a version"),
        ("[" * 60_000, "nested too deeply"),
        (_changed(version=2), "version 2"),
        (_changed(rows=True), "'rows' has the wrong type"),
        (_changed(rows="3"), "'rows' has the wrong type"),
        (_changed(kinds=[]), "'kinds' has the wrong type"),
        (_changed(path="../../etc/passwd"), "invalid segment path"),
        (_changed(host="beta"), "does not match date, hour and host"),
        (_changed(x="y" * 70_000), "longer than"),
    ],
)
def test_an_invalid_entry_is_reported_with_its_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=says) as caught:
        read_entry(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["path", "sha256", "last_seq"])
def test_a_field_that_is_missing_is_named(name: str) -> None:
    value = json.loads(entry().to_json())
    del value[name]
    with pytest.raises(ValueError, match=f"'{name}' is missing"):
        IndexEntry.from_json(json.dumps(value))


def test_newer_fields_are_ignored() -> None:
    assert IndexEntry.from_json(_changed(colour="red")) == entry()


def test_every_field_is_checked_when_read() -> None:
    from sbus_archive.record.layout import _TYPES

    assert {each.name for each in dataclasses.fields(IndexEntry)} == {*_TYPES, "version"}


IMPOSSIBLE = ["0001-01-01T00", "1969-12-31T23", "9999-12-31T23", "2026-13-45T99", "2026-11-20T24", "2026-11-2\u0660T12"]


@pytest.mark.parametrize("hour", IMPOSSIBLE)
def test_an_entry_of_an_impossible_hour_is_skipped_and_reported(tmp_path: Path, hour: str) -> None:
    write_entry(tmp_path, entry())
    name = f"{hour}.alpha.{1:020}.json"
    (tmp_path / "index" / name).write_text(entry().to_json())
    errors: list[RecordError] = []
    assert segment_names(tmp_path, list_index(tmp_path), errors.append) == [entry().name]
    assert [error.path.name for error in errors] == [name]
    assert (hour_of_entry(name), segment_of_entry(name)) == (None, None)
    with pytest.raises(RecordError, match="does not name a segment"):
        segment_names(tmp_path, list_index(tmp_path))


def test_the_name_of_an_entry_names_its_segment() -> None:
    name = entry().name
    assert segment_of_entry(Path(name.index_path).name) == name
    assert hour_of_entry(Path(name.index_path).name) == (name.date, name.hour)


DAY = DayName(entry().date, "alpha")


def write(archive: Path, content: bytes) -> None:
    """Write *content* as the day file."""
    path = archive / DAY.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_entries_survive_encoding_in_any_order(tmp_path: Path) -> None:
    entries = [entry(seq) for seq in (3, 1, 2)]
    write(tmp_path, encode_day(entries))
    assert encode_day(entries) == encode_day(reversed(entries))
    assert list(read_day(LocalStore(tmp_path), DAY).values()) == sorted(entries, key=lambda each: each.path)
    assert read_day(LocalStore(tmp_path), DayName("2026-11-21", "alpha")) == {}


def test_a_name_survives_and_other_files_are_ignored(tmp_path: Path) -> None:
    for day in (DAY, DayName("2026-01-31", "a.b-c")):
        assert DayName.parse(day.file) == day
    assert list_days(LocalStore(tmp_path)) == {}
    write(tmp_path, encode_day([entry()]))
    for name in (".draft.jsonl.gz", "x.jsonl.gz", "2026-13-01.alpha.jsonl.gz", "2026-11-20.-a.jsonl.gz", f"{DAY.file}.tmp"):
        (tmp_path / DAYS / name).write_text("x")
        assert DayName.parse(name) is None
    assert list(list_days(LocalStore(tmp_path))) == [DAY]


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(tmp_path, encode_day([entry()]))
    before = list_days(store)
    assert list_days(store) == before
    write(tmp_path, encode_day([entry(), entry(2)]))
    assert list_days(store).keys() == before.keys()
    assert list_days(store) != before


def packed(content: bytes) -> bytes:
    """Return the same file in each process."""
    return gzip.compress(content, mtime=0)


LINE = (entry().to_json() + "\n").encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not one complete gzip file"),
        (b"text", "damaged day file"),
        (encode_day([entry()])[:-5], "not one complete gzip file"),
        (encode_day([entry()]) + b"x", "not one complete gzip file"),
        (packed(b"{}\n"), "not a JSON object with a version"),
        (packed(b"\xff\n"), "damaged day file"),
        (packed(LINE + LINE), "an entry twice"),
        (packed((entry(1, "beta").to_json() + "\n").encode()), "of another day or host"),
        (None, f"longer than {MAX_DAY_BYTES} bytes"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content is None:  # made here: it takes a second, and each worker imports this file
        content = packed(b"\n" * (MAX_DAY_BYTES + 1))
    write(tmp_path, content)
    with pytest.raises(RecordError, match=says) as caught:
        read_day(LocalStore(tmp_path), DAY)
    assert str(tmp_path / DAY.path) in str(caught.value)
