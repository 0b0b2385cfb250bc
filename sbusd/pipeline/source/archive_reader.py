"""``spark.read.format("sbus").load(archive)``: the record at the time the query is planned."""

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
"""Maximum length of a line in characters: names come from other machines."""

TASK_BYTES = 32 << 20
"""Bytes of segments per task (or one segment): about a million rows, a second of work. Small segments share a task."""


@dataclass
class SegmentsPartition(InputPartition):
    """The segments of one task."""

    entries: tuple[IndexEntry, ...]


class ArchiveReader(DataSourceReader):
    """Reads an archive. The driver selects the segments once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: no archive is given, or a column does not exist."""
        self._root = archive_of(options)
        self._schema = arrow_schema(schema)
        self._selection = RowFilter(options.key, options.conditions)
        self._fails_on_unreadable = options.unreadable == "fail"

    def partitions(self) -> list[InputPartition]:
        """Return the partitions. Raises RecordError: an index entry is damaged, and the option unreadable is not skip."""
        unreadable = None if self._fails_on_unreadable else warn_skipped
        entries = [entry for entry in RecordReader(self._root).entries(unreadable=unreadable) if self._selection.may_have(entry)]
        return [SegmentsPartition(tuple(group)) for group in _grouped(entries)] or [SegmentsPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises RecordError: a segment is damaged, or was removed after planning."""
        if not isinstance(partition, SegmentsPartition):
            raise TypeError(f"not a partition of an archive: {partition!r}")
        for entry in partition.entries:
            yield from read_batches(self._root, entry, self._schema, self._selection)


def archive_of(options: Options) -> Path:
    """Return the archive of *options*. Raises SourceError: none is given, or it is not an archive."""
    if options.archive is None:
        raise SourceError('no archive given: use spark.read.format("sbus").load("/var/lib/sbus-recorder/archive")')
    if not options.archive.is_dir():
        raise SourceError(f"{options.archive}: not an archive: no such directory")
    if not (options.archive / INDEX).is_dir():
        raise SourceError(f"{options.archive}: not an archive: no directory {INDEX}. sbus-recorder creates it")
    return options.archive


def warn_skipped(error: RecordError) -> None:
    """Print on standard error of the driver that an index entry was skipped."""
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
