"""The feed between a fake journal and a fake bus: where it starts, how it reports losses, when it saves its position."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbus_services.feeds.journal.batch_reader import BATCH_BYTES, BATCH_ENTRIES
from sbus_services.feeds.journal.checked_publisher import AccessCheckError, Batch
from sbus_services.feeds.journal.entry import Cursor, CursorFile, JournalEntry
from sbus_services.feeds.journal.feed import BACKLOG_SECONDS, JournalFeed, StartPosition
from sbus_services.feeds.journal.reader import UnreadableEntryError

NOW = 1_000_000.0


def cursor(number: int, *, source: str = "a") -> Cursor:
    realtime = int((NOW - 10.0) * 1e6) + number
    return Cursor.parse(f"s={source * 32};i={number:x};b={'b' * 32};m={number:x};t={realtime:x};x={number:x}")


def entry(number: int, *, source: str = "a", **fields: bytes) -> JournalEntry:
    return JournalEntry(cursor(number, source=source), {"MESSAGE": b"%d" % number, "PRIORITY": b"6", **fields})


class FakeJournal:
    """A journal that returns its items in order, and raises the exceptions among them."""

    def __init__(self, *items: JournalEntry | Exception) -> None:
        self.items = deque(items)
        self.taken: list[JournalEntry | Exception] = []
        self.sought: list[object] = []
        self.last: Cursor | None = None
        self.skips = False
        """Whether the saved position is before the backlog."""
        self.is_other = False
        """Whether the next change is one of files."""
        self._pipe = os.pipe()
        os.write(self._pipe[1], b"x")

    def fileno(self) -> int:
        return self._pipe[0]

    def timeout_ms(self) -> int | None:
        return None

    def process(self) -> bool:
        is_other, self.is_other = self.is_other, False
        return is_other

    def seek(self, last: Cursor | None) -> None:
        """What was taken comes again, from the entry *last* on."""
        self.sought.append(last)
        is_found = False
        while self.taken and not is_found:
            item = self.taken.pop()
            self.items.appendleft(item)
            is_found = isinstance(item, JournalEntry) and item.cursor == last

    def seek_last(self, lines: int) -> Cursor | None:
        self.sought.append(lines)
        return self.last

    def seek_recent(self, saved: Cursor, seconds: float) -> bool:
        self.seek(saved)
        self.sought[-1] = (saved, seconds)
        return self.skips

    def read(self) -> JournalEntry | None:
        if not self.items:
            return None
        item = self.items.popleft()
        self.taken.append(item)
        if isinstance(item, Exception):
            raise item
        return item

    def close(self) -> None:
        for descriptor in self._pipe:
            os.close(descriptor)


class FakePublisher:
    """A bus that accepts batches, except for the given numbers of rejected messages."""

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
    def published(self) -> list[str]:
        """The published messages in short form."""
        return [short(key, payload) for batch in self.batches for key, payload in batch]


def short(key: str, payload: bytes) -> str:
    published: dict[str, Any] = json.loads(payload)
    return f"{published['reason']} {published['count']}" if key == "journal/-/lost" else published["MESSAGE"]


class FeedFixture:
    """A feed with its environment."""

    def __init__(self, folder: Path, *items: JournalEntry | Exception) -> None:
        self.journal = FakeJournal(*items)
        self.publisher = FakePublisher()
        self.file = CursorFile(folder / "cursor")
        self.said: list[str] = []
        self.status: list[str] = []
        self.now = 0.0

    def clock(self) -> float:
        self.now += 100.0  # so that everything is due each time
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
def fixture(folder: Path) -> Iterator[FeedFixture]:
    made = FeedFixture(folder)
    yield made
    made.journal.close()


def test_first_start_is_at_the_given_position_and_saves_it(fixture: FeedFixture) -> None:
    fixture.journal.last = cursor(7)
    fixture.feed(StartPosition(lines=3))
    assert fixture.journal.sought == [3]
    assert fixture.file.load() == cursor(7), "an end before the first entry must not lose later entries"


def test_empty_journal(fixture: FeedFixture) -> None:
    feed = fixture.feed()
    feed.turn()
    assert fixture.file.load() is None
    fixture.journal.items.extend([entry(1), entry(2)])
    feed.turn()
    assert fixture.publisher.published == ["1", "2"]
    assert fixture.file.load() == cursor(2)


def test_begins_where_it_stopped(fixture: FeedFixture) -> None:
    fixture.file.save(cursor(5))
    fixture.journal.items.extend([entry(5), entry(6)])
    fixture.feed().turn()
    assert fixture.journal.sought[0] == (cursor(5), BACKLOG_SECONDS)
    assert fixture.publisher.published == ["6"]


def test_begins_where_it_stopped_at_the_end_of_a_file(fixture: FeedFixture) -> None:
    fixture.file.save(cursor(5))
    fixture.journal.items.extend([entry(5), entry(1, source="c"), entry(2, source="c")])
    fixture.feed().turn()
    assert fixture.publisher.published == ["1", "2"]


@pytest.mark.parametrize(
    ("first", "published"),
    [
        (entry(6), ["6"]),
        (entry(7), ["vacuumed 1", "7"]),
        (entry(1, source="c"), ["vacuumed None", "1"]),
        (entry(5, source="c"), []),
    ],
    ids=["only the entry itself", "another too", "another source", "copied to another file"],
)
def test_the_entry_of_the_cursor_is_removed(fixture: FeedFixture, first: JournalEntry, published: list[str]) -> None:
    fixture.file.save(cursor(5))
    fixture.journal.items.append(first)
    fixture.feed().turn()
    assert fixture.publisher.published == published


def test_entries_that_vanish_before_they_are_read_are_counted(fixture: FeedFixture) -> None:
    fixture.journal.last = cursor(1)
    fixture.journal.items.extend([entry(2), entry(5), entry(1, source="c"), entry(2, source="c")])
    feed = fixture.feed()
    feed.turn()
    assert fixture.publisher.published == ["vacuumed 2", "2", "5", "1", "2"]
    assert feed.counters.missing == 2
    assert fixture.said == ["skipped 2 entries that are no longer in the journal"]


def test_entries_that_journald_moves_to_var_are_published_once(fixture: FeedFixture) -> None:
    fixture.journal.last = cursor(1)
    fixture.journal.items.extend([entry(2), entry(3)])
    feed = fixture.feed()
    feed.turn()
    # journald copies them to a file with its own numbers. The library skips copies of entries that were read.
    fixture.journal.items.extend([entry(4, source="c"), entry(6, source="c")])
    feed.turn()
    assert fixture.publisher.published == ["2", "3", "vacuumed 1", "4", "6"]


@pytest.mark.parametrize(
    ("following", "published"),
    [
        ([entry(2), entry(3)], ["2", "3"]),
        ([entry(3)], ["2", "3"]),
        ([entry(5)], ["2", "vacuumed 2", "5"]),
        ([entry(2, source="c"), entry(3, source="c")], ["2", "3"]),
        ([entry(3, source="c")], ["2", "vacuumed None", "3"]),
    ],
)
def test_after_a_change_of_files_it_continues_behind_the_last_entry(
    fixture: FeedFixture, following: list[JournalEntry], published: list[str]
) -> None:
    """It is sought again: the library knows no place in a file that was removed, nor a folder that was not there."""
    fixture.journal.last = cursor(1)
    fixture.journal.items.append(entry(2))
    feed = fixture.feed()
    feed.turn()
    fixture.journal.taken.clear()  # removed
    fixture.journal.is_other = True
    feed.turn()
    assert fixture.journal.sought[-1] == cursor(2)
    fixture.journal.items.extend(following)
    feed.turn()
    assert fixture.publisher.published == published


def test_backlog_bounds_how_far_back_it_goes(fixture: FeedFixture) -> None:
    fixture.file.save(cursor(5))
    fixture.journal.skips = True
    fixture.journal.items.extend([entry(100), entry(101)])
    fixture.feed(StartPosition(backlog_seconds=3600)).turn()
    assert set(fixture.journal.sought) == {(cursor(5), 3600)}
    assert fixture.publisher.published == ["backlog 94", "100", "101"]
    assert fixture.said == ["skipped 94 entries older than --backlog"]


def test_journal_that_seeks_too_far_back_does_not_bring_entries_twice(fixture: FeedFixture) -> None:
    fixture.file.save(cursor(5))
    fixture.journal.skips = True
    fixture.journal.items.extend([entry(3), entry(4), entry(5), entry(6)])
    fixture.feed(StartPosition(backlog_seconds=3600)).turn()
    assert fixture.publisher.published == ["6"]


@pytest.mark.parametrize("content", ["", "garbage", "s=1;i=2"])
def test_damaged_cursor_file_is_reported(fixture: FeedFixture, content: str) -> None:
    assert fixture.file.path is not None
    fixture.file.path.write_text(content)
    fixture.journal.items.append(entry(9))
    fixture.journal.last = cursor(8)
    fixture.feed().turn()
    assert fixture.journal.sought[0] == 0
    assert fixture.publisher.published == ["cursor None", "9"]
    assert len(fixture.said) == 1
    assert str(fixture.file.path) in fixture.said[0]
    assert fixture.file.load() == cursor(9)


def test_damaged_entries_are_counted_once(fixture: FeedFixture) -> None:
    fixture.journal.last = cursor(1)
    fixture.journal.items.extend([entry(2), UnreadableEntryError("damaged"), UnreadableEntryError("damaged"), entry(5), entry(7)])
    feed = fixture.feed()
    feed.turn()
    assert fixture.publisher.published == ["unreadable 2", "vacuumed 1", "2", "5", "7"]
    assert (feed.counters.unreadable, feed.counters.missing) == (2, 1)
    assert "damaged" in fixture.said[0]


def test_rejections_are_reported_with_the_next_entry(fixture: FeedFixture) -> None:
    fixture.journal.items.extend([entry(1), entry(2)])
    fixture.publisher.refused.append(2)
    feed = fixture.feed()
    for _ in range(3):
        feed.turn()
    assert len(fixture.publisher.batches) == 1
    assert (feed.counters.entries, feed.counters.refused) == (2, 2)
    fixture.journal.items.append(entry(3))
    feed.turn()
    assert fixture.publisher.published[2:] == ["refused 2", "3"]


def test_echo_is_omitted_but_its_position_is_saved(fixture: FeedFixture) -> None:
    fixture.journal.items.append(entry(4, _SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=b"42f13a4bdc354a9fb0e263134c20ef30"))
    feed = fixture.feed()
    feed.turn()
    assert fixture.publisher.batches == []
    assert feed.counters.echoes == 1
    assert fixture.file.load() == cursor(4)


def test_echoes_do_not_hide_later_entries(fixture: FeedFixture) -> None:
    lost = b"42f13a4bdc354a9fb0e263134c20ef30"
    fixture.journal.items.extend(entry(number, _SYSTEMD_UNIT=b"sbus.service", MESSAGE_ID=lost) for number in range(1, BATCH_ENTRIES + 1))
    fixture.journal.items.append(entry(BATCH_ENTRIES + 1))
    os.read(fixture.journal.fileno(), 1)  # never readable: waiting would not end
    feed = fixture.feed()
    feed.turn()
    feed.turn()
    assert fixture.publisher.published == [str(BATCH_ENTRIES + 1)]


def test_batches_are_bounded(fixture: FeedFixture) -> None:
    fixture.journal.items.extend(entry(number) for number in range(1, 2 * BATCH_ENTRIES))
    feed = fixture.feed()
    feed.turn()
    assert len(fixture.publisher.batches[0]) == BATCH_ENTRIES
    fixture.journal.items.clear()
    fixture.journal.items.extend(entry(BATCH_ENTRIES + number, MESSAGE=b"x" * 40_000) for number in range(1, 100))
    feed.turn()
    sizes = [len(payload) for _, payload in fixture.publisher.batches[1]]
    assert sum(sizes[:-1]) < BATCH_BYTES <= sum(sizes)


@pytest.mark.parametrize("error", [AccessCheckError("closed"), KeyboardInterrupt()])
def test_saved_position_is_that_of_routed_entries(fixture: FeedFixture, error: BaseException) -> None:
    fixture.journal.items.extend([entry(1), entry(2)])
    feed = fixture.feed()
    feed.turn()
    fixture.journal.items.append(entry(3))
    fixture.publisher.error = error
    with pytest.raises(type(error)):
        feed.turn()
    feed.save()
    assert fixture.file.load() == cursor(2)


def test_run_saves_at_its_end(fixture: FeedFixture) -> None:
    feed = fixture.feed()
    fixture.journal.last = cursor(4)
    fixture.journal.items.append(entry(5))
    fixture.publisher.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        feed.run()
    assert fixture.file.load() == cursor(4)


def test_position_that_cannot_be_saved_is_logged_and_counted(fixture: FeedFixture, tmp_path: Path) -> None:
    fixture.file = CursorFile(tmp_path / "nowhere" / "cursor")
    feed = fixture.feed()
    for number in range(1, 31):
        fixture.journal.items.append(entry(number))
        feed.turn()
    assert len(fixture.publisher.published) == 30, "it goes on"
    assert feed.counters.unsaved >= 30
    assert len(fixture.said) == 2
    assert "No such file or directory" in fixture.said[0]


def test_status(fixture: FeedFixture) -> None:
    fixture.journal.items.append(entry(1, MESSAGE=b"x" * 100_000))
    feed = fixture.feed()
    feed.turn()
    assert fixture.status[0] == "0 entries, 0 lost, 0 cut, 0 reconnects"
    assert fixture.status[-1] == "1 entries, 0 lost, 1 cut, 0 reconnects"
