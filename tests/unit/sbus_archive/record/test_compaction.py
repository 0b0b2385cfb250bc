"""A compaction changes the files of the index, and never what it says: compared with a plain model, also after each possible kill."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_archive.record import compaction
from sbus_archive.record.compaction import GRACE_NS, compact
from sbus_archive.record.index import DayName, find_entry, list_days, list_index, read_entries, read_index, write_entry
from sbus_archive.record.layout import HOUR_NS, INDEX, IndexEntry, SegmentName
from sbus_archive.storage.store import LocalStore
from tests.support.examples import examples
from tests.support.records import NOON
from tests.unit.sbus_archive.record.test_index import entry

DAY_NS = 24 * HOUR_NS


def at(day: int, seq: int, host: str = "alpha") -> IndexEntry:
    """Return the entry of a segment some days after NOON."""
    name = SegmentName.at(NOON + day * DAY_NS, host, seq)
    return dataclasses.replace(entry(seq, host), path=name.path, date=name.date, min_ts=NOON + day * DAY_NS, max_ts=NOON + day * DAY_NS)


class KilledError(Exception):
    """The process ended here."""


class _Store(LocalStore):
    """A directory whose user is killed after a number of changes."""

    left = -1

    def _change(self) -> None:
        if self.left == 0:
            raise KilledError
        self.left -= 1

    def put(self, name: str, source: BinaryIO) -> None:
        self._change()
        super().put(name, source)

    def delete(self, name: str) -> None:
        self._change()
        super().delete(name)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.integers(1, 9), st.sampled_from(["alpha", "beta"])),
        st.tuples(st.just("remove"), st.integers(0, 4), st.integers(1, 9), st.sampled_from(["alpha", "beta"])),
        st.tuples(st.just("compact"), st.integers(0, 6), st.integers(-1, 12), st.sampled_from(["alpha", "beta"])),
    ),
    max_size=40,
)


@settings(max_examples=examples(150))
@given(actions=ACTIONS)
def test_an_index_says_what_a_plain_model_says(actions: list[tuple[str, int, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive, model = Path(folder), dict[str, IndexEntry]()
        (archive / INDEX).mkdir()
        for what, day, number, host in actions:
            each = at(day, max(number, 1), host)
            if what == "compact":
                store = _Store(archive)
                store.left = number
                with contextlib.suppress(KilledError):
                    assert not compact(store, host, NOON + day * DAY_NS).unreadable
            elif what == "add" and each.path not in model:
                model[each.path] = each
                write_entry(archive, each)
            elif what == "remove" and each.path in model:
                model[each.path] = dataclasses.replace(model[each.path], removed_at=day, removed_because="quota")
                write_entry(archive, model[each.path])
            assert list(read_index(archive)) == sorted(model.values(), key=lambda each: each.name)
        for each in model.values():
            assert find_entry(archive, each.name) == each
        assert read_entries(archive, [each.name for each in model.values()]) == list(read_index(archive))


def test_only_days_that_are_over_and_own_entries_are_merged(tmp_path: Path) -> None:
    for day in (0, 1):
        for host in ("alpha", "beta"):
            write_entry(tmp_path, at(day, 1, host))
    midnight = (NOON // DAY_NS + 1) * DAY_NS
    assert compact(LocalStore(tmp_path), "alpha", midnight + GRACE_NS - 1).days == 0
    done = compact(LocalStore(tmp_path), "alpha", midnight + GRACE_NS, may_merge=lambda name: ".alpha." in name)
    assert (done.days, done.entries, done.unreadable) == (1, 1, 0)
    assert list(list_days(LocalStore(tmp_path))) == [DayName(at(0, 1).date, "alpha")]
    assert len(list_index(tmp_path).names) == 3
    assert compact(LocalStore(tmp_path), "beta", NOON + 9 * DAY_NS, may_merge=lambda _: False).days == 0


def test_many_days_take_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DAYS_PER_TURN", 2)
    for day in range(5):
        write_entry(tmp_path, at(day, 1))
    assert [compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS).days for _ in range(4)] == [2, 2, 1, 0]


def test_what_cannot_be_read_stays_and_is_counted(tmp_path: Path) -> None:
    for day, seq in ((0, 1), (0, 2), (1, 1)):
        write_entry(tmp_path, at(day, seq))
    broken = tmp_path / at(0, 2).name.index_path
    broken.write_text("{")
    done = compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    assert (done.days, done.entries, done.unreadable) == (2, 2, 1)
    assert str(broken) in done.error
    assert broken.exists()
    merged = tmp_path / DayName(at(1, 1).date, "alpha").path
    merged.write_bytes(b"x")
    write_entry(tmp_path, at(1, 5))
    again = compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    assert (again.days, again.unreadable) == (0, 2)
    assert merged.read_bytes() == b"x"


def test_a_day_beyond_the_limit_keeps_single_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MAX_DAY_BYTES", 2 * len(at(0, 1).to_json()) + 10)
    for seq in range(1, 5):
        write_entry(tmp_path, at(0, seq))
    assert compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS).entries == 2
    assert len(list_index(tmp_path).names) == 2
    assert list(read_index(tmp_path)) == [at(0, seq) for seq in range(1, 5)]


def test_another_owner_stops_the_compaction_before_it_writes(tmp_path: Path) -> None:
    write_entry(tmp_path, at(0, 1))

    def refuse() -> None:
        raise KilledError

    with pytest.raises(KilledError):
        compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS, before_write=refuse)
    assert [path.name for path in (tmp_path / INDEX).iterdir()] == [Path(at(0, 1).name.index_path).name]


def test_a_reader_finds_an_entry_that_is_merged_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing is from before, and the file is gone."""
    for seq in (1, 2):
        write_entry(tmp_path, at(0, seq))
    listing = list_index(tmp_path)
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    assert list(read_index(tmp_path, listing=listing)) == [at(0, 1), at(0, 2)]


def test_a_compaction_that_is_repeated_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry(tmp_path, at(0, 1))
    compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS)
    writes: list[Any] = []
    monkeypatch.setattr(LocalStore, "put", lambda *arguments: writes.append(arguments))
    write_entry(tmp_path, at(0, 1))  # as a kill between the day file and the deletion leaves it
    assert compact(LocalStore(tmp_path), "alpha", NOON + 9 * DAY_NS).days == 1
    assert (writes, list_index(tmp_path).names) == ([], ())
