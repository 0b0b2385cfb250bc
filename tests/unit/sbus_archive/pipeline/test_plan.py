"""What is to be done about an hour: what cannot be read is missing in it, and read as soon as it can be."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sbus_archive.pipeline.plan import ArchiveIndex, HourTask
from sbus_archive.pipeline.progress import Progress
from sbus_archive.pipeline.verification import Damaged, verify_in_threads
from sbus_archive.record.index import write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.record.segments import RecordReader
from sbus_archive.tables.hours import Hour, Manifest
from tests.support.records import NOON, message
from tests.support.traffic import deliver

HOUR = Hour.at(NOON)


class Bench:
    """An archive, and what is said of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said = io.StringIO()

    def task(self, hour: Hour = HOUR, made: Manifest | None = None, *, rebuild: bool = False) -> HourTask | None:
        """Read the index, and return what to do about *hour*."""
        archive = RecordReader(self.root)
        return ArchiveIndex(archive, Progress(errors=self.said), partial(verify_in_threads, archive), [hour]).task(
            hour, made, rebuild=rebuild
        )

    def deliver(self, host: str, seq: int, hour: int = 0) -> IndexEntry:
        """Put a segment with one row into the archive."""
        (entry,) = deliver(self.root, host, [message(seq, ts=NOON + hour * HOUR_NS)])
        return entry


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_copied_segment_is_read_once_for_each_host(bench: Bench) -> None:
    entry = bench.deliver("beta", 7)
    content = (bench.root / entry.path).read_bytes()
    copies = [
        dataclasses.replace(entry, path=dataclasses.replace(entry.name, host=host, first_seq=seq).path, host=host)
        for host, seq in (("alpha", 7), ("beta", 8))
    ]
    for copy in copies:
        (bench.root / copy.path).parent.mkdir(parents=True, exist_ok=True)
        (bench.root / copy.path).write_bytes(content)
        write_entry(bench.root, copy)
    task = bench.task()
    assert task is not None
    assert [found.path for found in task.manifest.segments] == [copies[0].path, entry.path]


@pytest.mark.parametrize("size", [0, 1, 100])
def test_an_entry_that_is_damaged_or_half_copied_is_missing_until_it_is_whole(bench: Bench, size: int) -> None:
    good, bad = bench.deliver("alpha", 1), bench.deliver("beta", 2)
    path = bench.root / bad.name.index_path
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    first = bench.task()
    assert first is not None
    assert ([entry.path for entry in first.manifest.segments], first.manifest.absent) == ([good.path], (str(bad.name.index_path),))
    assert bench.said.getvalue().startswith(f"sbus-pipeline: skipped until it can be read: {path}: ")
    assert bench.task(made=first.manifest) is None  # as long as it is bad
    path.write_bytes(whole)
    then = bench.task(made=first.manifest)
    assert then is not None
    assert then.tables
    assert ({entry.path for entry in then.manifest.segments}, then.manifest.absent) == ({good.path, bad.path}, ())


def test_an_entry_that_is_damaged_is_missing_in_the_hour_before_too(bench: Bench) -> None:
    """It may have replies to calls of that hour."""
    bench.deliver("alpha", 1)
    bad = bench.deliver("alpha", 2, hour=1)
    (bench.root / bad.name.index_path).write_text("{")
    for hour in (HOUR, HOUR.following):
        task = bench.task(hour)
        assert task is not None
        assert task.manifest.absent == (str(bad.name.index_path),)
    assert bench.task(HOUR.preceding) is None


def test_an_entry_in_a_file_of_another_name_is_listed_and_hides_no_segment(bench: Bench) -> None:
    """A stale copy of an entry, with the checksum of an earlier file."""
    good = bench.deliver("alpha", 1)
    path = bench.root / good.name.index_path
    stale = replace(good, sha256="0" * 64)
    path.with_name("2026-11-20T12.alpha.copy.json").write_text(stale.to_json())
    task = bench.task()
    assert task is not None
    assert (task.manifest.segments, task.manifest.absent) == ((good,), ("index/2026-11-20T12.alpha.copy.json",))
    assert f"it describes another segment, {good.path}" in bench.said.getvalue()


@pytest.mark.parametrize("place", ["segments", "following"])
@pytest.mark.parametrize("is_listed", [True, False])
def test_a_segment_that_was_damaged_after_it_was_verified_is_not_read_again(bench: Bench, place: str, is_listed: bool) -> None:
    """Parquet does not notice most damage, so the numbers would be wrong; the hour waits for the segment."""
    first, other = bench.deliver("alpha", 1), bench.deliver("alpha", 2, hour=1)
    made = bench.task()
    assert made is not None
    entry = first if place == "segments" else other
    path, index = bench.root / entry.path, bench.root / entry.name.index_path
    whole = path.read_bytes()
    late = bench.deliver("beta", 3)
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    if not is_listed:
        index.unlink()
    kept = bench.task(made=made.manifest)
    assert kept is not None
    assert kept.tables == ()
    assert kept.manifest == replace(made.manifest, absent=(entry.path,), left_out=(late.path,))
    assert "checksum mismatch" in bench.said.getvalue() or not is_listed
    assert "kept 2026-11-20T12 unchanged: segments that it was made from are gone or damaged: 1" in bench.said.getvalue()
    assert bench.task(made=kept.manifest) is None  # as long as it is damaged
    path.write_bytes(whole)
    then = bench.task(made=kept.manifest)
    assert then is not None
    assert then.tables
    assert (then.manifest.segments, then.manifest.following) == ((first, late), (other,))
    assert (then.manifest.absent, then.manifest.left_out) == ((), ())


def test_a_damaged_segment_is_not_computed_again_on_request(bench: Bench) -> None:
    entry = bench.deliver("alpha", 1)
    made = bench.task()
    assert made is not None
    path = bench.root / entry.path
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    kept = bench.task(made=made.manifest, rebuild=True)
    assert kept is not None
    assert (kept.tables, kept.manifest) == ((), replace(made.manifest, absent=(entry.path,)))
    assert bench.task(made=kept.manifest) is None
    path.write_bytes(whole)
    then = bench.task(made=kept.manifest)
    assert then is not None
    assert then.manifest.absent == ()


@pytest.mark.parametrize("name", ["x.json", "2026-11-20T24.alpha.1.json", "2026-13-20T12.alpha.1.json"])
def test_an_entry_without_an_hour_is_reported(bench: Bench, name: str) -> None:
    bench.deliver("alpha", 1)
    (bench.root / "index" / name).write_text("{}")
    task = bench.task()
    assert task is not None
    assert task.manifest.absent == ()
    assert name in bench.said.getvalue()


def test_hosts_that_have_stopped_are_in_the_manifest(bench: Bench) -> None:
    for hour in range(170):
        bench.deliver("alpha", 1_000 + hour, hour)
    for seq, (host, hour) in enumerate((("beta", 0), ("gamma", 3), ("delta", 169), ("epsilon", 168)), 1):
        bench.deliver(host, seq, hour)
    found = [bench.task(Hour.at(NOON + hour * HOUR_NS)) for hour in (0, 1, 4, 168, 169)]
    assert [task and task.manifest.silent for task in found] == [
        {}, {"beta": 1}, {"beta": 4, "gamma": 1}, {"beta": 168, "gamma": 165}, {"epsilon": 1, "gamma": 166},
    ]  # fmt: skip


def test_all_segments_are_verified_at_once_and_a_damaged_one_is_named_once(bench: Bench) -> None:
    """Also the one that belongs to two hours, with the replies to calls of the hour before."""
    entries = [bench.deliver("alpha", hour + 1, hour) for hour in range(3)]
    (bench.root / entries[1].path).write_bytes(b"PAR1")
    archive, calls = RecordReader(bench.root), list[list[str]]()

    def verify(wanted: Sequence[IndexEntry]) -> Damaged:
        calls.append(sorted(entry.path for entry in wanted))
        return verify_in_threads(archive, wanted)

    hours = [Hour.at(NOON + hour * HOUR_NS) for hour in range(3)]
    index = ArchiveIndex(archive, Progress(errors=bench.said), verify, hours)
    tasks = index.tasks(hours, {})
    assert calls == [sorted(entry.path for entry in entries)]
    assert [task.manifest.absent for task in tasks] == [(entries[1].path,), (entries[1].path,), ()]
    assert bench.said.getvalue().count("skipped until it is available") == 1
    assert index.tasks([HOUR], {HOUR: tasks[0].manifest}) == []
    assert len(calls) == 1
