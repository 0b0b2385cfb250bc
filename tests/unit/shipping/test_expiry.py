"""Retention of the destination: marks, then deletes, only segments of the own host, and finishes what was interrupted."""

from __future__ import annotations

from pathlib import Path

from sbusd.archive.record.index import read_index, write_entry
from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.storage.local import LocalStore
from sbusd.shipping.expiry import Expiry
from tests.support.records import NOON, message
from tests.support.traffic import deliver

DAY_NS = 24 * HOUR_NS


def expiry(root: Path, days: int = 1) -> Expiry:
    """Return the retention of alpha's segments."""
    return Expiry(root, LocalStore(root), "alpha", days * 86_400.0)


def test_expired_segments_of_this_host_are_marked_and_deleted(tmp_path: Path) -> None:
    for host in ("alpha", "beta"):
        deliver(tmp_path, host, [message(1)])
        deliver(tmp_path, host, [message(2, ts=NOON + HOUR_NS)])
    made = expiry(tmp_path)
    assert list(made.remove(NOON + HOUR_NS + DAY_NS - 1)) == []
    now = NOON + HOUR_NS + DAY_NS
    (removed,) = made.remove(now)
    assert (removed.host, removed.hour, made.removed) == ("alpha", 12, 1)
    state = {(entry.host, entry.first_seq): (entry.removed_because, (tmp_path / entry.path).exists()) for entry in read_index(tmp_path)}
    assert state == {("alpha", 1): ("retention", False), ("alpha", 2): (None, True), ("beta", 1): (None, True), ("beta", 2): (None, True)}
    assert list(made.remove(now)) == []
    assert list(expiry(tmp_path, 0).remove(now * 2)) == []


def test_an_interrupted_removal_is_finished(tmp_path: Path) -> None:
    from dataclasses import replace

    deliver(tmp_path, "alpha", [message(1)])
    (entry,) = read_index(tmp_path)
    write_entry(tmp_path, replace(entry, removed_at=NOON, removed_because="retention"))
    made = expiry(tmp_path)
    assert [name.path for name in made.remove(NOON + 3 * DAY_NS)] == [entry.path]
    assert not (tmp_path / entry.path).exists()
    assert next(iter(read_index(tmp_path))).removed_at == NOON
    assert made.removed == 0


def test_damaged_entries_stay_and_are_counted(tmp_path: Path) -> None:
    deliver(tmp_path, "alpha", [message(1)])
    deliver(tmp_path, "alpha", [message(2)])
    first, second = read_index(tmp_path)
    (tmp_path / first.name.index_path).write_text("{")
    (tmp_path / second.name.index_path).write_text(first.to_json())
    made = expiry(tmp_path)
    assert list(made.remove(NOON + 3 * DAY_NS)) == []
    assert made.unreadable == 2
    assert (tmp_path / first.path).exists()
    assert (tmp_path / second.path).exists()
