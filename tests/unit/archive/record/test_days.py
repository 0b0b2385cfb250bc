"""Day files are read completely or not at all, and damage is reported."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sbusd.archive.files import RecordError
from sbusd.archive.record.days import DAYS, MAX_DAY_BYTES, DayName, encode_day, list_days, read_day
from sbusd.archive.storage.local import LocalStore
from tests.unit.archive.record.test_index import entry

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
