"""Retention of the destination: marks, then deletes, only segments in the list of shipped ones, and finishes what was interrupted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbus_archive.record import compaction
from sbus_archive.record.index import list_days, list_index, read_index, write_entry
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.shipped import ListHeader, ListWriter, ShippedList
from sbus_archive.shipping.destination import INTERVAL_SECONDS, Expiry, IndexMerger, expired_list
from sbus_archive.shipping.log_messages import NOT_MERGED
from sbus_archive.storage.ownership import HostTakenError
from sbus_archive.storage.store import LocalStore
from tests.support.records import NOON, message
from tests.support.traffic import deliver
from tests.unit.sbus_archive.record.test_compaction import at
from tests.unit.sbus_archive.shipping.test_service import _Log

DAY_NS = 24 * HOUR_NS

HEADER = ListHeader("s3://bucket/x", "alpha", "1")


class _Counted(LocalStore):
    """A store that notes what was read, and lists nothing."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_names: list[str] = []

    def read(self, name: str, limit: int) -> bytes:
        self.read_names.append(name)
        return super().read(name, limit)

    def names(self, folder: str) -> list[str]:
        raise AssertionError(folder)


class Bench:
    """A destination with segments of alpha, all of them listed as shipped, and of beta."""

    def __init__(self, folder: Path) -> None:
        self.root, self.state = folder / "store", folder / "state"
        self.state.mkdir()
        self.shipped = ListWriter(self.state / "shipped", HEADER)
        self.store = _Counted(self.root)

    def deliver(self, host: str = "alpha", seq: int = 1, ts: int = NOON) -> None:
        for entry in deliver(self.root, host, [message(seq, ts=ts)]):
            if host == "alpha":
                self.shipped.add(Path(entry.name.index_path).name)

    def expiry(self, days: int = 1) -> Expiry:
        """Return the retention of alpha's segments, as of a new process."""
        return Expiry(self.store, self.shipped, expired_list(self.state / "expired", HEADER), days * 86_400.0)

    def list_(self, names: Iterable[str]) -> None:
        for name in names:
            self.shipped.add(name)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_expired_segments_of_this_host_are_marked_and_deleted(bench: Bench) -> None:
    for host in ("alpha", "beta"):
        bench.deliver(host)
        bench.deliver(host, 2, NOON + HOUR_NS)
    assert list(bench.expiry().remove(NOON + HOUR_NS + DAY_NS - 1)) == []
    now = NOON + HOUR_NS + DAY_NS
    made = bench.expiry()
    (removed,) = made.remove(now)
    assert (removed.host, removed.hour, made.removed) == ("alpha", 12, 1)
    state = {(e.host, e.first_seq): (e.removed_because, (bench.root / e.path).exists()) for e in read_index(bench.root)}
    assert state == {("alpha", 1): ("retention", False), ("alpha", 2): (None, True), ("beta", 1): (None, True), ("beta", 2): (None, True)}
    assert list(bench.expiry(0).remove(now * 2)) == []


def test_what_is_done_is_not_repeated_and_a_search_takes_place_once_an_hour(bench: Bench) -> None:
    bench.deliver()
    bench.deliver(seq=2, ts=NOON + HOUR_NS)
    now = NOON + HOUR_NS + DAY_NS
    made = bench.expiry()
    assert len(list(made.remove(now))) == 1
    bench.store.read_names.clear()
    # Another process, and this one in the next seconds.
    assert list(bench.expiry().remove(now)) == []
    assert list(made.remove(now + HOUR_NS - 1)) == []
    assert bench.store.read_names == []
    (second,) = made.remove(now + HOUR_NS)
    assert (second.first_seq, bench.store.read_names, made.removed) == (2, [second.index_path], 2)


def test_an_interrupted_search_is_continued_at_once(bench: Bench) -> None:
    bench.deliver()
    bench.deliver(seq=2)
    made = bench.expiry()
    now = NOON + 3 * DAY_NS
    first = next(made.remove(now))
    (second,) = made.remove(now)
    assert (first.first_seq, second.first_seq) == (1, 2)


def test_an_interrupted_removal_is_finished(bench: Bench) -> None:
    bench.deliver()
    (entry,) = read_index(bench.root)
    write_entry(bench.root, replace(entry, removed_at=NOON, removed_because="retention"))
    made = bench.expiry()
    assert [name.path for name in made.remove(NOON + 3 * DAY_NS)] == [entry.path]
    assert not (bench.root / entry.path).exists()
    assert next(iter(read_index(bench.root))).removed_at == NOON
    assert made.removed == 1


def test_what_was_removed_before_or_never_shipped_is_not_reported(bench: Bench) -> None:
    bench.deliver()
    (entry,) = read_index(bench.root)
    write_entry(bench.root, replace(entry, removed_at=NOON, removed_because="retention"))
    (bench.root / entry.path).unlink()
    names = [f"2026-11-19T00.alpha.{1:020}.json", f"2026-13-45T99.alpha.{1:020}.json", "x"]
    bench.list_(names)
    made = bench.expiry()
    assert list(made.remove(NOON + 3 * DAY_NS)) == []
    assert (made.removed, made.unreadable) == (0, 0)
    done = ShippedList(bench.state / "expired")
    done.refresh()
    assert set(done) == {names[0], Path(entry.name.index_path).name}


def test_damaged_entries_stay_and_are_counted(bench: Bench) -> None:
    bench.deliver()
    bench.deliver(seq=2)
    first, second = read_index(bench.root)
    (bench.root / first.name.index_path).write_text("{")
    (bench.root / second.name.index_path).write_text(first.to_json())
    made = bench.expiry()
    assert list(made.remove(NOON + 3 * DAY_NS)) == []
    assert made.unreadable == 2
    assert (bench.root / first.path).exists()
    assert (bench.root / second.path).exists()
    # They are tried again.
    (bench.root / first.name.index_path).write_text(first.to_json())
    assert len(list(made.remove(NOON + 4 * DAY_NS))) == made.unreadable == 1


def test_a_list_of_another_destination_is_begun_again(bench: Bench) -> None:
    done = expired_list(bench.state / "expired", HEADER)
    done.add("x")
    done.close()
    assert set(expired_list(bench.state / "expired", HEADER)) == {"x"}
    assert set(expired_list(bench.state / "expired", replace(HEADER, id="2"))) == set()


class MergingBench:
    """A destination with entries of three days in 2026, which are over, and a merger."""

    def __init__(self, folder: Path) -> None:
        for day in range(3):
            write_entry(folder, at(day, 1))
        self.folder, self.log, self.now, self.is_owner = folder, _Log(), 0.0, True
        self.merger = IndexMerger(LocalStore(folder), "alpha", self.check, self.log, lambda: self.now)  # type: ignore[arg-type]

    def check(self) -> None:
        if not self.is_owner:
            raise HostTakenError("taken")

    def days(self) -> int:
        return len(list_days(LocalStore(self.folder)))


@pytest.fixture
def merging_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MergingBench:
    monkeypatch.setattr("time.time_ns", lambda: at(30, 1).min_ts)
    return MergingBench(tmp_path)


def test_entries_are_merged_once_an_hour(merging_bench: MergingBench) -> None:
    merging_bench.merger.turn()
    assert (merging_bench.days(), list_index(merging_bench.folder).names) == (3, ())
    write_entry(merging_bench.folder, at(4, 1))
    merging_bench.now = INTERVAL_SECONDS - 1
    merging_bench.merger.turn()
    assert merging_bench.days() == 3
    merging_bench.now = INTERVAL_SECONDS
    merging_bench.merger.turn()
    assert merging_bench.days() == 4


def test_an_old_destination_is_merged_without_a_pause(merging_bench: MergingBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DAYS_PER_TURN", 1)
    monkeypatch.setattr("sbus_archive.shipping.destination.DAYS_PER_TURN", 1)
    found = []
    for _ in range(3):
        merging_bench.merger.turn()
        found.append(merging_bench.days())
    assert found == [1, 2, 3]


def test_only_the_owner_of_the_host_merges(merging_bench: MergingBench) -> None:
    merging_bench.is_owner = False
    with pytest.raises(HostTakenError):
        merging_bench.merger.turn()
    assert merging_bench.days() == 0


def test_unreadable_entries_are_counted_and_logged_once(merging_bench: MergingBench) -> None:
    (merging_bench.folder / at(0, 1).name.index_path).write_text("{")
    records: list[tuple[Any, ...]] = []
    for turn in range(3):
        merging_bench.now = turn * INTERVAL_SECONDS
        merging_bench.merger.turn()
        records = [(message, facts["count"]) for message, facts in merging_bench.log.records]
    assert (records, merging_bench.merger.unreadable, merging_bench.days()) == ([(NOT_MERGED, 1)], 1, 2)
