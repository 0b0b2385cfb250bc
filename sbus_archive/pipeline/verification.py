"""Compares segments with the checksums in the index: in threads of this process, or on a cluster in tasks of Spark.

Each function returns the error of each segment that is missing or damaged, by its path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.record.checksums import MISSING, damage_of
from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THREADS = 8
"""Maximum number of segments that this process reads at the same time; fewer on a machine with fewer processors."""

TASK_BYTES = 256 << 20
"""Bytes of segments of one task of Spark (or one segment): about a second of work."""

TASK_SEGMENTS = 64
"""Maximum number of segments of one task: on a network file system, opening a file can take longer than reading it."""

Damaged = Mapping[str, RecordError]
Verifier = Callable[[Sequence[IndexEntry]], Damaged]


def verify_in_threads(archive: RecordReader, entries: Sequence[IndexEntry]) -> Damaged:
    """Read the segments of *entries* in threads of this process."""

    def damage(entry: IndexEntry) -> RecordError | None:
        try:
            archive.verify(entry)
        except RecordError as error:
            return error
        return None

    with ThreadPoolExecutor(max(1, min(THREADS, os.cpu_count() or 1)), "verify") as threads:
        found = zip(entries, threads.map(damage, entries), strict=True)
        return {entry.path: error for entry, error in found if error is not None}


def verify_with_spark(spark: SparkSession, archive: RecordReader, entries: Sequence[IndexEntry]) -> Damaged:
    """Read the segments of *entries*, files that all machines see, in tasks of *spark*. Only the damaged ones are returned to this process.

    Raises:
        PipelineError: a task does not find a segment that this process finds: the machines do not share the archive.
    """
    work = [[(entry.path, os.path.abspath(str(archive.path(entry))), entry.sha256) for entry in group] for group in grouped(entries)]

    def damaged(group: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
        return [(name, why) for name, path, sha256 in group if (why := damage_of(path, sha256)) is not None]

    found = spark.sparkContext.parallelize(work, max(1, len(work))).flatMap(damaged).collect()
    named = {entry.path: entry for entry in entries}
    for name, why in found:
        if why == MISSING and archive.exists(named[name]):
            raise PipelineError(
                f"{archive.path(named[name])}: not found by an executor. All machines of the cluster must see the archive under this path"
            )
    return {name: RecordError(archive.path(named[name]), why) for name, why in found}


def grouped(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yield *entries* in groups for one task each."""
    group: list[IndexEntry] = []
    size = 0
    for entry in entries:
        if group and (size + entry.bytes > TASK_BYTES or len(group) == TASK_SEGMENTS):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.bytes
    if group:
        yield group
