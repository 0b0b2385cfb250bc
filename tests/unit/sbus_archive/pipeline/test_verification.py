"""Damaged segments are found and named alike, wherever they are read; tasks have a bounded size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbus_archive.pipeline import verification
from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.pipeline.verification import Damaged, grouped, verify_in_threads, verify_with_spark
from sbus_archive.record.checksums import MISSING
from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.segments import RecordReader
from tests.support.records import message
from tests.support.traffic import deliver


class Tasks:
    """Runs the tasks of a job here, one after another; the cluster itself is in test_cluster.py."""

    def __init__(self, work: list[Any], partitions: int) -> None:
        assert partitions == max(1, len(work))
        self._work = work

    def flatMap(self, function: Callable[[Any], list[Any]]) -> Tasks:  # noqa: N802 - Spark's name
        """Apply *function* to each task."""
        return Tasks(found := [each for task in self._work for each in function(task)], max(1, len(found)))

    def collect(self) -> list[Any]:
        """Return the results."""
        return self._work


def with_spark(archive: RecordReader, entries: list[IndexEntry]) -> Damaged:
    pytest.importorskip("pyspark")
    return verify_with_spark(cast("Any", SimpleNamespace(sparkContext=SimpleNamespace(parallelize=Tasks))), archive, entries)


@pytest.fixture
def entries(tmp_path: Path) -> list[IndexEntry]:
    """A whole, a changed, a cut and a missing segment, and a directory instead of one."""
    found = [deliver(tmp_path, f"host{number}", [message(1)])[0] for number in range(5)]
    paths = [tmp_path / entry.path for entry in found]
    content = paths[1].read_bytes()
    paths[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    paths[2].write_bytes(content[:9])
    paths[3].unlink()
    paths[4].unlink()
    paths[4].mkdir()
    return found


@pytest.mark.parametrize("verify", [verify_in_threads, with_spark])
def test_each_damage_is_named(
    tmp_path: Path, entries: list[IndexEntry], verify: Callable[[RecordReader, list[IndexEntry]], Damaged]
) -> None:
    damaged = verify(RecordReader(tmp_path), entries)
    mismatch = "checksum mismatch: the segment is damaged, or its index entry describes another file"
    why = [mismatch, mismatch, "missing, but named in the index", "cannot read file: Is a directory"]
    assert {path: str(error) for path, error in damaged.items()} == {
        entry.path: f"{tmp_path / entry.path}: {words}" for entry, words in zip(entries[1:], why, strict=True)
    }
    assert verify(RecordReader(tmp_path), []) == {}


def test_an_archive_that_executors_do_not_see_is_an_error(
    tmp_path: Path, entries: list[IndexEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "damage_of", lambda _path, _sha256: MISSING)
    with pytest.raises(PipelineError, match=rf"{entries[0].path}: not found by an executor\. All machines of the cluster must see"):
        with_spark(RecordReader(tmp_path), entries)


def test_a_task_has_a_bounded_number_of_bytes_and_segments(entries: list[IndexEntry], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "TASK_BYTES", 10)
    monkeypatch.setattr(verification, "TASK_SEGMENTS", 2)
    sizes = (4, 4, 1, 12, 3, 3, 3)
    found = grouped(replace(entries[0], bytes=size) for size in sizes)
    assert [[entry.bytes for entry in group] for group in found] == [[4, 4], [1], [12], [3, 3], [3]]
