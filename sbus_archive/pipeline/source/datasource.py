"""The Data Source ``sbus``: creates readers and writers for Spark. Spec: sbus-spark(7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from sbus.protocol.errors import SbusError
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.archive_reader import ArchiveReader, ArchiveStreamReader
from sbus_archive.pipeline.source.live_stream import LiveStreamReader
from sbus_archive.pipeline.source.options import DDL, Options
from sbus_archive.pipeline.source.publisher import QueryPublisher, StreamPublisher


class SbusSource(DataSource):
    """The Data Source; Spark finds it by name."""

    @classmethod
    def name(cls) -> str:
        """Return ``sbus``."""
        return "sbus"

    def schema(self) -> str:
        """Return the default columns."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of an archive. Raises SourceError."""
        return ArchiveReader(self._checked(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names, here and below
        """Return the stream of the given archive, or of the live bus."""
        try:
            return self._stream(schema)
        except SbusError as error:
            return InvalidStream(error)

    def _stream(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream. Raises SourceError."""
        options = self._checked()
        if options.archive is None:
            if options.conditions:
                raise SourceError("options host, kind, since and until are for archives only. Use the option key to filter the live bus")
            return LiveStreamReader(options, schema)
        if options.address is not None:
            raise SourceError("options path and address are mutually exclusive: a stream reads an archive or a live bus")
        if options.segments is not None:
            raise SourceError("the option segments is for spark.read only: a stream reads the segments that arrive")
        return ArchiveStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the publisher of a query. Raises SourceError."""
        if overwrite:
            raise SourceError('published messages cannot be overwritten: use .mode("append")')
        return QueryPublisher(self._checked(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Return the publisher of a streaming query. Raises SourceError."""
        if overwrite:
            raise SourceError('published messages cannot be overwritten: use .outputMode("append")')
        return StreamPublisher(self._checked(), schema)

    def _checked(self) -> Options:
        """Return the checked options. Raises SourceError."""
        return Options.parse(self.options)


class InvalidStream(DataSourceStreamReader):
    """A stream with invalid options, which raises the error in its first call: Spark 4.3 hides errors raised at creation."""

    def __init__(self, error: SbusError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Raises SbusError."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Raises SbusError."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raises SbusError."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        """Raises SbusError."""
        raise self._error


def register(spark: SparkSession) -> None:
    """Register ``format("sbus")`` with *spark*, where Spark does not find it: if the package came by ``--py-files``."""
    spark.dataSource.register(SbusSource)
