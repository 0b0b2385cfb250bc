"""The feed between a made-up journal and a made-up bus: where it begins, what it tells of losses, when it saves its place."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbusd.feeds.journal.checked_publisher import AccessCheckError, Batch
from sbusd.feeds.journal.cursor import Cursor, CursorFile
from sbusd.feeds.journal.entry import JournalEntry
from sbusd.feeds.journal.feed import BATCH_BYTES, BATCH_ENTRIES, JournalFeed, StartPosition
from sbusd.feeds.journal.reader import UnreadableEntryError

NOW = 1_000_000.0


def cursor(number: int, *, source: str = "a", age: float = 10.0) -> Cursor:
    realtime = int((NOW - age) * 1e6) + number
    return Cursor.parse(f"s={source * 32};i={number:x};b={'b' * 32};m={number:x};t={realtime:x};x={number:x}")


def entry(number: int, *, source: str = "a", **fields: bytes) -> JournalEntry:
    return JournalEntry(cursor(number, source=source), {"MESSAGE": b"%d" % number, "PRIORITY": b"6", **fields})


class FakeJournal:
    """A journal that gives its items in order; an exception among them is raised."""

    def __init__(self, *items: JournalEntry | Exception) -> None:
        self.items = deque(items)
        self.sought: list[object] = []
        self.last: Cursor | None = None
        self._pipe = os.pipe()
        os.write(self._pipe[1], b"x")

    def fileno(self) -> int:
        return self._pipe[0]

    def timeout_ms(self) -> int | None:
        return None

    def process(self) -> None:
        pass

    def seek_last(self, lines: int) -> Cursor | None:
        self.sought.append(lines)
        return self.last

    def seek(self, cursor: Cursor) -> None:
        self.sought.append(cursor)

    def seek_time(self, seconds: float) -> None:
        self.sought.append(seconds)

    def read(self) -> JournalEntry | None:
        if not self.items:
            return None
        item = self.items.popleft()
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        for descriptor in self._pipe:
            os.close(descriptor)


class FakePublisher:
    """A bus that takes what it is given, but for as many as it refuses."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.refused: deque[int] = deque()
        self.error: BaseException | None = None
        self.reconnects = 0

    def deliver(self, batch: Batch) -> int:
        if self.error is not None:
            raise self.error
        self.batches.append(batch)
        return self.refused.popleft() if self.refused else 0

    @property
    def told(self) -> list[str]:
        """What was published, in short."""
        return [short(key, payload) for batch in self.batches for key, payload in batch]


def short(key: str, payload: bytes) -> str:
    told: dict[str, Any] = json.loads(payload)
    return f"{told['reason']} {told['count']}" if key == "journal/-/lost" else told["MESSAGE"]


class World:
    """A feed with all that is around it."""

    def __init__(self, folder: Path, *items: JournalEntry | Exception) -> None:
        self.journal = FakeJournal(*items)
        self.publisher = FakePublisher()
        self.file = CursorFile(folder / "cursor")
        self.said: list[str] = []
        self.status: list[str] = []
        self.now = 0.0

    def clock(self) -> float:
        self.now += 100.0  # whatever is due is due at each look
        return self.now

    def feed(self, start: StartPosition | None = None) -> JournalFeed:
        given = start if start is not None else StartPosition()
        made = JournalFeed(
            self.journal, self.publisher, self.file, self.said.append, self.status.append, start=given, clock=self.clock, wall=lambda: NOW
        )
        made.begin()
        return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    made = World(folder)
    yield made
    made.journal.close()


def test_first_time_begins_where_it_is_told_and_keeps_that(world: World) -> None:
    world.journal.last = cursor(7)
    world.feed(StartPosition(lines=3))
    assert world.journal.sought == [3]
    assert world.file.load() == cursor(7), "an end before the first entry must not lose what comes meanwhile"


def test_empty_journal(world: World) -> None:
    feed = world.feed()
    feed.turn()
    assert world.file.load() is None
    world.journal.items.extend([entry(1), entry(2)])
    feed.turn()
    assert world.publisher.told == ["1", "2"]
    assert world.file.load() == cursor(2)


def test_begins_where_it_stopped(world: World) -> None:
    world.file.save(cursor(5))
    world.journal.items.extend([entry(5), entry(6)])
    world.feed().turn()
    assert world.journal.sought == [cursor(5)]
    assert world.publisher.told == ["6"]


def test_begins_where_it_stopped_at_the_end_of_a_file(world: World) -> None:
    world.file.save(cursor(5))
    world.journal.items.extend([entry(5), entry(1, source="c"), entry(2, source="c")])
    world.feed().turn()
    assert world.publisher.told == ["1", "2"]


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (entry(6), ["6"]),
        (entry(7), ["vacuumed 1", "7"]),
        (entry(1, source="c"), ["vacuumed None", "1"]),
        (entry(5, source="c"), []),
    ],
    ids=["only the entry itself", "another too", "another source", "copied to another file"],
)
def test_entry_of_the_cursor_is_gone(world: World, first: JournalEntry, told: list[str]) -> None:
    world.file.save(cursor(5))
    world.journal.items.append(first)
    world.feed().turn()
    assert world.publisher.told == told


def test_entries_that_vanish_before_they_are_read_are_counted(world: World) -> None:
    world.journal.last = cursor(1)
    world.journal.items.extend([entry(2), entry(5), entry(1, source="c"), entry(2, source="c")])
    feed = world.feed()
    feed.turn()
    assert world.publisher.told == ["vacuumed 2", "2", "5", "1", "2"]
    assert feed.counters.missing == 2
    assert world.said == ["skipped 2 entries that are no longer in the journal"]


def test_backlog_bounds_how_far_back_it_goes(world: World) -> None:
    world.file.save(cursor(5, age=7200))
    world.journal.items.extend([entry(100), entry(101)])
    world.feed(StartPosition(backlog_seconds=3600)).turn()
    assert world.journal.sought == [NOW - 3600]
    assert world.publisher.told == ["backlog 94", "100", "101"]
    assert world.said == ["skipped 94 entries older than --backlog"]


def test_clock_that_was_wrong_does_not_bring_entries_twice(world: World) -> None:
    world.file.save(cursor(5, age=7200))
    world.journal.items.extend([entry(3), entry(4), entry(5), entry(6)])
    world.feed(StartPosition(backlog_seconds=3600)).turn()
    assert world.publisher.told == ["6"]


@pytest.mark.parametrize("content", ["", "garbage", "s=1;i=2"])
def test_damaged_cursor_file_is_told(world: World, content: str) -> None:
    assert world.file.path is not None
    world.file.path.write_text(content)
    world.journal.items.append(entry(9))
    world.journal.last = cursor(8)
    world.feed().turn()
    assert world.journal.sought == [0]
    assert world.publisher.told == ["cursor None", "9"]
    assert len(world.said) == 1
    assert str(world.file.path) in world.said[0]
    assert world.file.load() == cursor(9)


def test_damaged_entries_are_counted_once(world: World) -> None:
    world.journal.last = cursor(1)
    world.journal.items.extend([entry(2), UnreadableEntryError("damaged"), UnreadableEntryError("damaged"), entry(5), entry(7)])
    feed = world.feed()
    feed.turn()
    assert world.publisher.told == ["unreadable 2", "vacuumed 1", "2", "5", "7"]
    assert (feed.counters.unreadable, feed.counters.missing) == (2, 1)
    assert "damaged" in world.said[0]


def test_refusals_are_told_with_the_next_entry_and_not_by_themselves(world: World) -> None:
    world.journal.items.extend([entry(1), entry(2)])
    world.publisher.refused.append(2)
    feed = world.feed()
    for _ in range(3):
        feed.turn()
    assert len(world.publisher.batches) == 1
    assert (feed.counters.entries, feed.counters.refused) == (2, 2)
    world.journal.items.append(entry(3))
    feed.turn()
    assert world.publisher.told[2:] == ["refused 2", "3"]


def test_echo_is_left_out_but_not_its_place(world: World) -> None:
    world.journal.items.append(entry(4, _SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=b"42f13a4bdc354a9fb0e263134c20ef30"))
    feed = world.feed()
    feed.turn()
    assert world.publisher.batches == []
    assert feed.counters.echoes == 1
    assert world.file.load() == cursor(4)


def test_echoes_do_not_hide_what_comes_behind_them(world: World) -> None:
    lost = b"42f13a4bdc354a9fb0e263134c20ef30"
    world.journal.items.extend(entry(number, _SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=lost) for number in range(1, BATCH_ENTRIES + 1))
    world.journal.items.append(entry(BATCH_ENTRIES + 1))
    os.read(world.journal.fileno(), 1)  # nothing will ever be readable: waiting would be for ever
    feed = world.feed()
    feed.turn()
    feed.turn()
    assert world.publisher.told == [str(BATCH_ENTRIES + 1)]


def test_batches_are_bounded(world: World) -> None:
    world.journal.items.extend(entry(number) for number in range(1, 2 * BATCH_ENTRIES))
    feed = world.feed()
    feed.turn()
    assert len(world.publisher.batches[0]) == BATCH_ENTRIES
    world.journal.items.clear()
    world.journal.items.extend(entry(BATCH_ENTRIES + number, MESSAGE=b"x" * 40_000) for number in range(1, 100))
    feed.turn()
    sizes = [len(payload) for _, payload in world.publisher.batches[1]]
    assert sum(sizes[:-1]) < BATCH_BYTES <= sum(sizes)


@pytest.mark.parametrize("error", [AccessCheckError("closed"), KeyboardInterrupt()])
def test_place_is_that_of_what_was_routed(world: World, error: BaseException) -> None:
    world.journal.items.extend([entry(1), entry(2)])
    feed = world.feed()
    feed.turn()
    world.journal.items.append(entry(3))
    world.publisher.error = error
    with pytest.raises(type(error)):
        feed.turn()
    feed.save()
    assert world.file.load() == cursor(2)


def test_run_saves_at_its_end(world: World) -> None:
    feed = world.feed()
    world.journal.last = cursor(4)
    world.journal.items.append(entry(5))
    world.publisher.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        feed.run()
    assert world.file.load() == cursor(4)


def test_place_that_cannot_be_saved_is_said_and_counted(world: World, tmp_path: Path) -> None:
    world.file = CursorFile(tmp_path / "nowhere" / "cursor")
    feed = world.feed()
    for number in range(1, 31):
        world.journal.items.append(entry(number))
        feed.turn()
    assert len(world.publisher.told) == 30, "it goes on"
    assert feed.counters.unsaved >= 30
    assert len(world.said) == 2
    assert "No such file or directory" in world.said[0]


def test_status(world: World) -> None:
    world.journal.items.append(entry(1, MESSAGE=b"x" * 100_000))
    feed = world.feed()
    feed.turn()
    assert world.status[0] == "0 entries, 0 lost, 0 cut, 0 reconnects"
    assert world.status[-1] == "1 entries, 0 lost, 1 cut, 0 reconnects"
