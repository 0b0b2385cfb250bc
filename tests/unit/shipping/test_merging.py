"""The index of the destination is merged once an hour, by the owner of the host, and failures are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbusd.archive.ownership import HostTakenError
from sbusd.archive.record import compaction
from sbusd.archive.record.index import list_days, list_index, write_entry
from sbusd.archive.storage.store import LocalStore
from sbusd.shipping.log_messages import NOT_MERGED
from sbusd.shipping.merging import INTERVAL_SECONDS, IndexMerger
from tests.unit.archive.record.test_compaction import at
from tests.unit.shipping.test_service import _Log


class Bench:
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
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("time.time_ns", lambda: at(30, 1).min_ts)
    return Bench(tmp_path)


def test_entries_are_merged_once_an_hour(bench: Bench) -> None:
    bench.merger.turn()
    assert (bench.days(), list_index(bench.folder).names) == (3, ())
    write_entry(bench.folder, at(4, 1))
    bench.now = INTERVAL_SECONDS - 1
    bench.merger.turn()
    assert bench.days() == 3
    bench.now = INTERVAL_SECONDS
    bench.merger.turn()
    assert bench.days() == 4


def test_an_old_destination_is_merged_without_a_pause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DAYS_PER_TURN", 1)
    monkeypatch.setattr("sbusd.shipping.merging.DAYS_PER_TURN", 1)
    found = []
    for _ in range(3):
        bench.merger.turn()
        found.append(bench.days())
    assert found == [1, 2, 3]


def test_only_the_owner_of_the_host_merges(bench: Bench) -> None:
    bench.is_owner = False
    with pytest.raises(HostTakenError):
        bench.merger.turn()
    assert bench.days() == 0


def test_unreadable_entries_are_counted_and_logged_once(bench: Bench) -> None:
    (bench.folder / at(0, 1).name.index_path).write_text("{")
    records: list[tuple[Any, ...]] = []
    for turn in range(3):
        bench.now = turn * INTERVAL_SECONDS
        bench.merger.turn()
        records = [(message, facts["count"]) for message, facts in bench.log.records]
    assert (records, bench.merger.unreadable, bench.days()) == ([(NOT_MERGED, 1)], 1, 2)
