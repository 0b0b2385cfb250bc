"""What a run has seen of an index is known to the next one, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.record.index import DayName, IndexListing
from sbusd.archive.storage.store import LocalStore
from sbusd.pipeline.known_index import KNOWN_INDEX, KnownIndex

NAMES = ("2026-11-20T12.alpha.00000000000000000001.json", "2026-11-20T12.a\nb\udcff.json", '2026-11-20T13."é\u2028".json')
DAY, NEXT = DayName("2026-11-18", "alpha"), DayName("2026-11-19", "alpha")


def known(folder: Path) -> KnownIndex:
    """Read the file."""
    return KnownIndex(LocalStore(folder))


def test_what_was_saved_is_known(tmp_path: Path) -> None:
    first = known(tmp_path)
    assert (first.is_new, first.new_names(NAMES)) == (True, list(NAMES))
    first.save(IndexListing(NAMES[:2], {DAY: "1"}))
    for each in (first, known(tmp_path)):
        assert (each.is_new, each.new_names(NAMES)) == (False, [NAMES[2]])
        assert each.changed_days(IndexListing((), {DAY: "1", NEXT: "1"})) == [NEXT]
        assert each.changed_days(IndexListing((), {DAY: "2"})) == [DAY]
    assert (tmp_path / KNOWN_INDEX).stat().st_mode & 0o137 == 0


def test_names_that_were_merged_are_forgotten(tmp_path: Path) -> None:
    """The file does not grow with the archive."""
    known(tmp_path).save(IndexListing(NAMES, {}))
    known(tmp_path).save(IndexListing(NAMES[2:], {DAY: "1"}))
    assert known(tmp_path).new_names(NAMES) == list(NAMES[:2])


def test_a_day_file_that_could_not_be_read_stays_unknown(tmp_path: Path) -> None:
    listing = IndexListing((), {DAY: "1", NEXT: "1"})
    known(tmp_path).save(listing, {NEXT})
    assert known(tmp_path).changed_days(listing) == [NEXT]


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    listing = IndexListing(NAMES, {DAY: "1"})
    known(tmp_path).save(listing)
    before = (tmp_path / KNOWN_INDEX).stat().st_ino
    known(tmp_path).save(listing)
    assert (tmp_path / KNOWN_INDEX).stat().st_ino == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version":2}', '{"version":1,"names":[],"days":7}', '{"version":1,"names":[]'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / KNOWN_INDEX).write_text(content)
    with pytest.raises(TablesError, match=r"damaged file.*Remove it: all hours are compared once") as caught:
        known(tmp_path)
    assert KNOWN_INDEX in str(caught.value)
