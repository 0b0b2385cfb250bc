"""What a stream over an archive has read: every segment once, in whatever order they arrive, and what it cannot know it says."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from sbusd.archive.record.layout import IndexEntry, SegmentName
from sbusd.pipeline.errors import SourceError
from sbusd.pipeline.source.archive_offset import Offset, next_offset


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
