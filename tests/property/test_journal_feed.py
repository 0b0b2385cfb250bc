"""No life of the journal, the bus and the feed makes the feed pass over an entry in silence, or change the order of entries.

A model of them: entries are written into two files and vacuumed, the feed turns, the bus refuses or goes away after some of a batch, the
feed is killed or stopped and started again. The library does not know a new file, or passes over an entry that comes into a file which it
has looked at already. At the end each entry has been published or is counted in a reported loss.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sbus_services.feeds.journal.checked_publisher import Batch
from sbus_services.feeds.journal.entry import Cursor, CursorFile, JournalEntry
from sbus_services.feeds.journal.feed import JournalFeed, StartPosition
from tests.support.examples import examples


class KilledError(Exception):
    """The feed ends here, without any cleanup."""


class ModelJournal:
    """Entries by number, without vacuumed ones. A wait ends immediately, because no other process writes entries.

    *is_shared* is whether the files count their entries together, as since systemd 253.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.entries: list[int] = []
        self.next = 1
        self.place = 0
        self.is_other = False
        """Whether the next change is one of files."""
        self.unknown: set[int] = set()
        """Entries of a new file, which the library does not know until it processes that."""
        self.passed: set[int] = set()
        """Entries over which the library passes if there is a later one in another file, until it seeks."""
        self._is_shared = is_shared
        self._cursors: dict[int, Cursor] = {}
        self._files: dict[int, str] = {}
        self._counts = {"a": 0, "c": 0}
        self._reading, writing = os.pipe()
        os.close(writing)  # so that polling never waits

    def write(self, file: str) -> int:
        """Add an entry to *file*, and return its number."""
        number, self.next = self.next, self.next + 1
        self._counts[file] += 1
        self._files[number] = file
        source, count = ("a", number) if self._is_shared else (file, self._counts[file])
        text = f"s={source * 32};i={count:x};b={'b' * 32};m={number:x};t={number:x};x={number:x}"
        self._cursors[number] = Cursor.parse(text)
        self.entries.append(number)
        return number

    def fileno(self) -> int:
        return self._reading

    def timeout_ms(self) -> int | None:
        return None

    def process(self) -> bool:
        is_other, self.is_other = self.is_other or bool(self.unknown), False
        self.unknown.clear()
        return is_other

    def seek(self, last: Cursor | None) -> None:
        self.passed.clear()
        self.place = 0 if last is None else last.monotonic - 1

    def seek_last(self, lines: int) -> Cursor | None:
        before = self.entries[: -lines or None]
        self.place = before[-1] if before else 0
        return self._cursors[self.place] if before else None

    def seek_recent(self, saved: Cursor, seconds: float) -> bool:
        self.seek(saved)
        return False

    def read(self) -> JournalEntry | None:
        known = [each for each in self.entries if each > self.place and each not in self.unknown]
        if not known:
            return None
        number = known[0]
        if number in self.passed:
            number = next((each for each in known if self._files[each] != self._files[number]), number)
        self.place = number
        return JournalEntry(self._cursors[number], {"MESSAGE": b"%d" % number, "PRIORITY": b"6"})

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

    @initialize(is_shared=st.booleans())
    def begin(self, is_shared: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.file = CursorFile(Path(self.folder.name) / "cursor")
        self.is_shared = is_shared
        self.journal = ModelJournal(is_shared=is_shared)
        self.publisher = ModelPublisher()
        self.now = 0.0
        self.kills = 0
        self.journal.write("a")  # a journal is never empty: the start of the machine is in it
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

    @rule(count=st.integers(1, 5), file=st.sampled_from("ac"))
    def write(self, count: int, file: str) -> None:
        for _ in range(count):
            self.journal.write(file)

    @rule(file=st.sampled_from("ac"), is_followed=st.booleans())
    def pass_over(self, file: str, is_followed: bool) -> None:
        self.journal.passed.add(self.journal.write(file))
        if is_followed:
            self.journal.write("c" if file == "a" else "a")

    @rule(is_followed=st.booleans())
    def make_file(self, is_followed: bool) -> None:
        self.journal.unknown.add(self.journal.write("c"))
        if is_followed:
            self.journal.write("a")

    @precondition(lambda self: self.is_shared)  # otherwise the number of removed entries is unknown
    @rule(kept=st.integers(0, 4))
    def vacuum(self, kept: int) -> None:
        del self.journal.entries[: max(0, len(self.journal.entries) - kept)]

    @rule()
    def change_files(self) -> None:
        self.journal.is_other = True

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
        self.write(1, "a")
        for _ in self.journal.entries:
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


JournalFeedMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=25)
TestJournalFeed = JournalFeedMachine.TestCase
