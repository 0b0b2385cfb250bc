"""Index entries are known once, whatever their names, and until they are forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.tables import maintenance
from sbusd.archive.tables.delta import LOG
from sbusd.pipeline.known_entries import KNOWN_ENTRIES, KnownEntries

NAMES = [
    "2026-11-20T12.alpha.00000000000000000001.json",
    "2026-11-20T12.b\u2028.00000000000000000002.json",
    '2026-11-21T13."é.00000000000000000003.json',
]


def test_names_are_known_after_they_were_added(tmp_path: Path) -> None:
    known = KnownEntries(tmp_path)
    assert known.new_among(NAMES) == NAMES
    known.add(NAMES[:2])
    assert known.new_among(NAMES) == NAMES[2:]
    KnownEntries(tmp_path).add(NAMES[2:])
    assert KnownEntries(tmp_path).new_among(NAMES) == []


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    known = KnownEntries(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    known.add([])
    known.forget()
    assert sorted(tmp_path.rglob("*")) == before


def test_all_names_can_be_forgotten(tmp_path: Path) -> None:
    known = KnownEntries(tmp_path)
    known.add(NAMES)
    known.forget()
    assert known.new_among(NAMES) == KnownEntries(tmp_path).new_among(NAMES) == NAMES


def test_another_writer_is_an_error(tmp_path: Path) -> None:
    one, other = KnownEntries(tmp_path), KnownEntries(tmp_path)
    one.add(NAMES[:1])
    with pytest.raises(TablesError, match="another program has changed the table"):
        other.add(NAMES[1:])


def test_files_and_log_do_not_grow_without_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMMITS", 4)
    days = [f"2026-11-{day:02}T12.alpha.00000000000000000001.json" for day in range(1, 20)]
    for day in days:
        KnownEntries(tmp_path).add([day, day.replace("alpha", "beta")])
    assert KnownEntries(tmp_path).new_among(days) == []
    assert list((tmp_path / KNOWN_ENTRIES / LOG).glob("*.checkpoint.parquet"))
