"""``spark.read.format("sbus").load(archive)``: the record as it stands when the query is planned."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbusd.archive.errors import RecordError
from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.layout import INDEX
from sbusd.archive.record.reader import RecordReader
from sbusd.pipeline.errors import SourceError
from sbusd.pipeline.source.columns import arrow_schema
from sbusd.pipeline.source.options import Options
from sbusd.pipeline.source.segments import RowFilter, read_batches
from sbusd.protocol.printable import printable

_LONGEST = 300
"""Characters of a line: names come from other machines."""

TASK_BYTES = 32 << 20
"""Bytes of segments that one task reads, or one segment: about a million rows, a second's work; small ones share a task's start."""


@dataclass
class SegmentsPartition(InputPartition):
    """What one task reads."""

    entries: tuple[IndexEntry, ...]


class ArchiveReader(DataSourceReader):
    """Reads an archive; which segments, is decided once, on the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: no archive is named, or a column is none of the record's."""
        self._root = archive_of(options)
        self._schema = arrow_schema(schema)
        self._selection = RowFilter(options.key, options.conditions)
        self._fails_on_unreadable = options.unreadable == "fail"

    def partitions(self) -> list[InputPartition]:
        """Return what the tasks read. Raises RecordError: an entry of the index is damaged, and the options do not say to leave it out."""
        unreadable = None if self._fails_on_unreadable else warn_skipped
        entries = [entry for entry in RecordReader(self._root).entries(unreadable=unreadable) if self._selection.may_have(entry)]
        return [SegmentsPartition(tuple(group)) for group in _grouped(entries)] or [SegmentsPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises RecordError: a segment is damaged, or has been removed since the query was planned."""
        if not isinstance(partition, SegmentsPartition):
            raise TypeError(f"not a partition of an archive: {partition!r}")
        for entry in partition.entries:
            yield from read_batches(self._root, entry, self._schema, self._selection)


def archive_of(options: Options) -> Path:
    """Return the archive that *options* name. Raises SourceError: they name none, or a folder that is not one."""
    if options.archive is None:
        raise SourceError('no archive given: use spark.read.format("sbus").load("/var/lib/sbus-recorder/archive")')
    if not options.archive.is_dir():
        raise SourceError(f"{options.archive}: not an archive: no such directory")
    if not (options.archive / INDEX).is_dir():
        raise SourceError(f"{options.archive}: not an archive: no directory {INDEX}. sbus-recorder creates it")
    return options.archive


def warn_skipped(error: RecordError) -> None:
    """Say on standard error, which is the driver's, that an entry of the index is left out."""
    print(f"sbus: skipped: {printable(str(error), _LONGEST)}", file=sys.stderr, flush=True)


def _grouped(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yield *entries* in groups of about :data:`TASK_BYTES`."""
    group: list[IndexEntry] = []
    for entry in entries:
        if group and sum(each.bytes for each in group) + entry.bytes > TASK_BYTES:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group
