"""A stream reads each segment once, while entries are merged under its eyes, and it does not read a day again that it has finished."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbusd.archive.files import RecordError
from sbusd.archive.record.compaction import compact
from sbusd.archive.record.index import DayName, read_day, write_entry
from sbusd.archive.record.layout import HOUR_NS, INDEX, IndexEntry
from sbusd.archive.storage.store import FileStore, LocalStore
from sbusd.pipeline.errors import SourceError
from sbusd.pipeline.source import stream_index
from sbusd.pipeline.source.archive_offset import Offset, next_offset
from sbusd.pipeline.source.stream_index import StreamIndex
from tests.support.records import NOON
from tests.unit.archive.record.test_compaction import at

DAY_NS = 24 * HOUR_NS


def put(archive: Path, day: int, seq: int, host: str = "alpha") -> str:
    """Write the entry of a segment with three rows, and the segment as far as the stream looks at it; return its path."""
    entry = at(day, seq, host)
    path = archive / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    write_entry(archive, entry)
    return entry.path


def step(index: StreamIndex, offset: Offset, max_rows: int | None = None) -> Offset:
    """Return the offset after one batch."""
    return next_offset(offset, index.unread(offset, max_rows, None), max_rows)


@pytest.mark.parametrize("seed", range(12))
def test_each_row_is_read_once_while_days_are_merged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    todo = [(day, seq, host) for day in range(6) for host in ("alpha", "beta") for seq in range(1, 5)]
    index, offset, read, written = StreamIndex(tmp_path, None), Offset.begin(), Counter[tuple[str, int]](), []
    (tmp_path / INDEX).mkdir()
    while True:
        for _ in range(min(len(todo), chance.randrange(4))):
            written.append(put(tmp_path, *todo.pop(0)))
        if chance.random() < 0.5:
            compact(LocalStore(tmp_path), chance.choice(["alpha", "beta"]), NOON + chance.randrange(9) * DAY_NS)
        if chance.random() < 0.1:
            index = StreamIndex(tmp_path, None)
        following = step(index, offset, chance.choice([None, 1, 2, 5]))
        if following != offset:
            read.update((each.path, row) for each in following.batch for row in range(each.first, each.last))
        elif not todo:
            break
        offset = following
    assert read == Counter({(path, row): 1 for path in written for row in range(3)})


def test_a_finished_day_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(8):
        put(tmp_path, day, 1)
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    index = StreamIndex(tmp_path, None)
    offset = step(index, Offset.begin())
    opened: list[DayName] = []

    def noted(store: FileStore, day: DayName) -> Mapping[str, IndexEntry]:
        opened.append(day)
        return read_day(store, day)

    monkeypatch.setattr(stream_index, "read_day", noted)
    assert step(index, offset) == offset
    assert opened == []
    put(tmp_path, 7, 2)
    assert step(index, offset) != offset
    assert opened == [DayName(at(7, 1).date, "alpha")]


def test_a_batch_reads_only_as_many_days_as_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day in range(8):
        put(tmp_path, day, 1)
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    opened: list[DayName] = []

    def noted(store: FileStore, day: DayName) -> Mapping[str, IndexEntry]:
        opened.append(day)
        return read_day(store, day)

    monkeypatch.setattr(stream_index, "read_day", noted)
    assert len(StreamIndex(tmp_path, None).unread(Offset.begin(), 4, None)) == 2
    assert len(opened) == 2


def test_a_segment_of_a_day_that_is_over_for_the_stream_is_an_error(tmp_path: Path) -> None:
    index, offset = StreamIndex(tmp_path, None), Offset.begin()
    for day in range(5):
        put(tmp_path, day, 1)
        offset = step(index, offset)
    put(tmp_path, 0, 2)
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    with pytest.raises(SourceError, match=r"1 segments of host alpha .* arrived too late"):
        step(index, offset)


def test_a_target_has_what_the_index_contained(tmp_path: Path) -> None:
    put(tmp_path, 0, 1)
    put(tmp_path, 4, 1)
    compact(LocalStore(tmp_path), "alpha", NOON + 2 * DAY_NS)
    index = StreamIndex(tmp_path, None)
    target = index.target()
    put(tmp_path, 5, 2)
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    assert [entry.first_seq for entry in index.unread(Offset.begin(), None, target)] == [1, 1]
    assert len(index.unread(Offset.begin(), None, None)) == 3


def test_a_damaged_day_file_is_skipped_or_an_error(tmp_path: Path) -> None:
    put(tmp_path, 0, 1)
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    put(tmp_path, 4, 2)
    (tmp_path / DayName(at(0, 1).date, "alpha").path).write_bytes(b"x")
    with pytest.raises(RecordError, match="damaged day file"):
        StreamIndex(tmp_path, None).unread(Offset.begin(), None, None)
    errors: list[RecordError] = []
    assert [entry.first_seq for entry in StreamIndex(tmp_path, errors.append).unread(Offset.begin(), None, None)] == [2]
    assert len(errors) == 1
