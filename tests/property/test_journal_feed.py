"""No life of the journal, the bus and the feed makes the feed pass over an entry in silence, or change the order of entries.

A model of them: entries are written and vacuumed, the feed turns, the bus refuses or goes away after some of a batch, the feed is
killed or stopped and started again. At the end each entry has been published or is counted in a reported loss.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sbusd.feeds.journal.checked_publisher import Batch
from sbusd.feeds.journal.cursor import Cursor, CursorFile
from sbusd.feeds.journal.entry import JournalEntry
from sbusd.feeds.journal.feed import JournalFeed, StartPosition


class KilledError(Exception):
    """The feed ends here, without any cleanup."""


def cursor(number: int) -> Cursor:
    return Cursor.parse(f"s={'a' * 32};i={number:x};b={'b' * 32};m={number:x};t={number:x};x={number:x}")


class ModelJournal:
    """Entries by number, without vacuumed ones. A wait ends immediately, because no other process writes entries."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.next = 1
        self.place = 0
        self._reading, writing = os.pipe()
        os.close(writing)  # so that polling never waits

    def fileno(self) -> int:
        return self._reading

    def timeout_ms(self) -> int | None:
        return None

    def process(self) -> None:
        """There is nothing to take note of."""

    def seek_last(self, lines: int) -> Cursor | None:
        before = self.entries[: -lines or None]
        self.place = before[-1] if before else 0
        return cursor(self.place) if before else None

    def seek(self, place: Cursor) -> None:
        self.place = place.number - 1

    def seek_time(self, seconds: float) -> None:
        raise AssertionError("nothing is older than the backlog")

    def read(self) -> JournalEntry | None:
        number = next((each for each in self.entries if each > self.place), None)
        if number is None:
            return None
        self.place = number
        return JournalEntry(cursor(number), {"MESSAGE": b"%d" % number, "PRIORITY": b"6"})

    def close(self) -> None:
        os.close(self._reading)


class ModelPublisher:
    """The messages that the bus has routed, in order: entries by number, losses as negative counts."""

    def __init__(self) -> None:
        self.reconnects = 0
        self.routed: list[int] = []
        self.kill_after: int | None = None

    def deliver(self, batch: Batch) -> int:
        for number, (key, payload) in enumerate(batch):
            if number == self.kill_after:
                raise KilledError
            reported = json.loads(payload)
            self.routed.append(-reported["count"] if key == "journal/-/lost" else int(reported["MESSAGE"]))
        if self.kill_after is not None:
            raise KilledError
        return 0


class JournalFeedMachine(RuleBasedStateMachine):
    """All events, in any order."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.file = CursorFile(Path(self.folder.name) / "cursor")
        self.journal = ModelJournal()
        self.publisher = ModelPublisher()
        self.now = 0.0
        self.kills = 0
        self.journal.entries = [self.journal.next]  # a journal is never empty: the start of the machine is in it
        self.journal.next += 1
        self.start()

    def start(self) -> None:
        self.feed = JournalFeed(
            self.journal,
            self.publisher,
            self.file,
            lambda line: None,
            lambda line: None,
            start=StartPosition(),
            rate=1_000_000,
            clock=self.clock,
            wall=lambda: 0.0,
        )
        self.feed.begin()

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    @rule(count=st.integers(1, 5))
    def write(self, count: int) -> None:
        self.journal.entries += range(self.journal.next, self.journal.next + count)
        self.journal.next += count

    @rule(kept=st.integers(0, 4))
    def vacuum(self, kept: int) -> None:
        del self.journal.entries[: max(0, len(self.journal.entries) - kept)]

    @rule()
    def turn(self) -> None:
        self.feed.turn()

    @rule(after=st.integers(0, 5))
    def kill(self, after: int) -> None:
        self.publisher.kill_after = after
        self.kills += 1
        with contextlib.suppress(KilledError):
            self.feed.turn()
        self.publisher.kill_after = None
        self.start()

    @rule()
    def stop(self) -> None:
        self.feed.save()
        self.start()

    @invariant()
    def order_is_that_of_the_journal(self) -> None:
        seen = [number for number in self.publisher.routed if number > 0]
        fresh = [number for place, number in enumerate(seen) if number not in seen[:place]]
        assert fresh == sorted(fresh)

    def teardown(self) -> None:
        self.write(1)
        self.feed.turn()
        seen = {number for number in self.publisher.routed if number > 0}
        reported = -sum(number for number in self.publisher.routed if number < 0)
        missing = set(range(2, self.journal.next)) - seen
        assert not missing & set(self.journal.entries), "what is still there was published"
        # Only after a kill the last items are published again, and losses as entries.
        assert reported >= len(missing)
        if not self.kills:
            assert reported == len(missing)
            assert sorted(seen) == [number for number in self.publisher.routed if number > 0]
        self.journal.close()
        self.folder.cleanup()


JournalFeedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestJournalFeed = JournalFeedMachine.TestCase
