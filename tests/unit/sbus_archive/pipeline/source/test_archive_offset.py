"""What a stream over an archive has read: every segment once, in whatever order they arrive, and what it cannot know it says."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source import archive_offset
from sbus_archive.pipeline.source.archive_offset import Offset, StreamIndex, next_offset
from sbus_archive.record.compaction import compact
from sbus_archive.record.index import DayName, read_day, write_entry
from sbus_archive.record.layout import HOUR_NS, INDEX, IndexEntry, SegmentName
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.store import FileStore, LocalStore
from tests.support.records import NOON
from tests.unit.sbus_archive.record.test_compaction import at


def entry(seq: int, *, host: str = "alpha", day: int = 1, hour: int = 0, rows: int = 10, removed: bool = False) -> IndexEntry:
    name = SegmentName(f"2026-11-{day:02}", hour, host, seq)
    removed_at = 1 if removed else None
    return IndexEntry(name.path, name.date, hour, host, rows, 1, "", 0, 0, seq, seq, removed_at=removed_at)


def advance(offset: Offset, entries: list[IndexEntry], max_rows: int | None = None) -> Offset:
    """As the reader does, through JSON as Spark keeps it."""
    by_name = {each.name: each for each in entries}
    unread = [by_name[name] for name in offset.unread(by_name)]
    return Offset.from_json(json.loads(json.dumps(next_offset(offset, unread, max_rows).to_json())))


@pytest.mark.parametrize("seed", range(20))
def test_each_row_is_read_once_however_segments_arrive(seed: int) -> None:
    chance = random.Random(seed)
    todo = [
        entry(seq, host=host, day=seq // 4 + 1, hour=seq % 4, rows=chance.randrange(1, 40))
        for host in ("alpha", "b-2")
        for seq in range(12)
    ]
    # Each host's come in order, or a day late at most; hosts have nothing to do with each other.
    todo.sort(key=lambda each: each.first_seq + chance.randrange(4) + (50 if each.host == "b-2" and seed % 2 else 0))
    here: list[IndexEntry] = []
    read: Counter[tuple[str, int]] = Counter()
    offset = Offset.begin()
    while todo or advance(offset, here) != offset:
        limit = chance.choice((None, 1, 7, 25))
        here += [todo.pop(0) for _ in range(min(len(todo), chance.randrange(3)))]
        following = advance(offset, here, limit)
        if following != offset:
            assert limit is None or sum(each.last - each.first for each in following.batch) <= limit
            read.update((each.path, row) for each in following.batch for row in range(each.first, each.last))
        offset = following
    assert read == Counter({(each.path, row): 1 for each in here for row in range(each.rows)})


def test_an_offset_stays_small() -> None:
    here: list[IndexEntry] = []
    offset = Offset.begin()
    for day in range(1, 29):
        here += [entry(day * 100 + number, day=day, hour=number % 24) for number in range(96)]
        offset = advance(offset, here)
    assert len(json.dumps(offset.to_json())) < 12_000
    assert sum(map(len, offset.seen.values())) == 2 * 96
    assert sum(offset.older.values()) == 26 * 96


def test_a_segment_that_arrives_too_late_is_reported() -> None:
    here = [entry(day, day=day) for day in (1, 2, 3)]
    offset = advance(Offset.begin(), here)
    offset = advance(offset, [*here, entry(4, day=4)])
    with pytest.raises(SourceError, match=r"1 segments of host alpha for 2026-11-01 arrived too late: .* date = '2026-11-01'"):
        advance(offset, [*here, entry(4, day=4), entry(9, day=1, hour=5)])
    # Another host's first ones are in time whenever they come.
    assert [each.path for each in advance(offset, [*here, entry(4, day=4), entry(9, host="beta", day=1)]).batch]


def test_removed_segments_are_counted_and_not_read() -> None:
    offset = advance(Offset.begin(), [entry(1, removed=True), entry(2)])
    assert (offset.removed, [each.path for each in offset.batch]) == (1, [entry(2).path])
    begun = advance(Offset.begin(), [entry(1)], 4)
    assert begun.partly is not None
    ended = advance(begun, [entry(1, removed=True)])
    assert (ended.removed, ended.batch, ended.partly) == (1, (), None)


def test_nothing_new_is_the_same_offset() -> None:
    offset = advance(Offset.begin(), [entry(1)])
    assert advance(offset, [entry(1)]) == offset


@pytest.mark.parametrize("value", [{}, {"listener": "x", "rows": 1}, {"seen": 1, "older": {}, "partly": None, "batch": [], "removed": 0}])
def test_another_checkpoint_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(SourceError, match="Use a separate checkpoint"):
        Offset.from_json(value)


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

    monkeypatch.setattr(archive_offset, "read_day", noted)
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

    monkeypatch.setattr(archive_offset, "read_day", noted)
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
