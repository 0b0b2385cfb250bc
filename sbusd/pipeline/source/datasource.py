"""``format("sbus")``: what Spark asks for readers and writers, and how it learns of it. Spec: sbus-spark(7)."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from sbusd.pipeline.source.archive_reader import ArchiveReader, PushdownReader
from sbusd.pipeline.source.archive_stream import ArchiveStreamReader
from sbusd.pipeline.source.columns import DDL
from sbusd.pipeline.source.errors import SourceError
from sbusd.pipeline.source.live_stream import LiveStreamReader
from sbusd.pipeline.source.options import Options
from sbusd.pipeline.source.publisher import Publisher, StreamPublisher

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting without which no source written in Python may take filters; a source that would is refused."""


class SbusSource(DataSource):
    """The Data Source as Spark finds it by itself: all of it, but filters stay with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return ``sbus``."""
        return "sbus"

    def schema(self) -> str:
        """Return the columns of what is read, where the program does not choose some of them."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of an archive. Raises SourceError."""
        return ArchiveReader(self._checked(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names, here and below
        """Return the stream of the archive that is named, or of the live bus. Raises SourceError."""
        options = self._checked()
        if options.archive is None:
            if options.conditions:
                raise SourceError(
                    "of the live bus a pattern can be chosen, by the option key; host, kind, since and until are for archives"
                )
            return LiveStreamReader(options, schema)
        if options.address is not None:
            raise SourceError("a stream reads an archive or the bus at an address: give one of path and address")
        return ArchiveStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the publisher of a query's rows. Raises SourceError."""
        if overwrite:
            raise SourceError('what was published cannot be overwritten: use .mode("append")')
        return Publisher(self._checked(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the publisher of a streaming query. Raises SourceError."""
        if overwrite:
            raise SourceError('what was published cannot be overwritten: use .outputMode("append")')
        return StreamPublisher(self._checked(), schema)

    def _checked(self) -> Options:
        """Return the options. Raises SourceError."""
        return Options.parse(self.options)


class PushdownSource(SbusSource):
    """The same, and takes filters from Spark."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of an archive. Raises SourceError."""
        return PushdownReader(self._checked(), schema)


def register(spark: SparkSession, *, pushdown: bool = False) -> None:
    """Make ``format("sbus")`` known to *spark*, where it does not find it by itself: where the package came by ``--py-files``.

    With *pushdown*, filters of ``where`` are applied while segments are read. Then each frame from ``load`` may have one filter only:
    Spark 4.3 keeps the last one that it planned for a frame, and reads every other query of the same frame with it, silently. So by
    default filters stay with Spark, and the options ``key``, ``host``, ``kind``, ``since`` and ``until`` choose what is read.
    """
    if pushdown:
        spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(PushdownSource if pushdown else SbusSource)
