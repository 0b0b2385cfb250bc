"""The options of ``format("sbus")``, among them conditions on rows, and its columns. Spec: sbus-spark(7), OPTIONS.

Filters of ``where`` are left to Spark. It can push them down, but Spark 4.3 caches the reader with the last pushed filters for all
queries of a DataFrame, and does not report the other filters: each query cannot get its own rows.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from sbus_archive.pipeline.errors import SourceError
from sbus_archive.record.layout import IndexEntry, SegmentName, is_host
from sbus_archive.record.schema import PARTITION_SCHEMA, SCHEMA, RowKind
from sbus_archive.storage.location import ArchivePath, LocationError, parse_location

_FIELDS = (*SCHEMA, *PARTITION_SCHEMA)

_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "string": "string",
    "binary": "binary",
    "bool": "boolean",
    "list<element: int64>": "array<bigint>",
}

DDL = ", ".join(f"`{field.name}` {_TYPES[str(field.type)]}" for field in _FIELDS)
"""All columns in Spark's DDL."""

_KNOWN = {field.name: field for field in _FIELDS}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns of *schema*, a selection of the record's, as Spark expects its batches.

    Raises:
        SourceError: a column does not exist, or has another type.
    """
    fields = []
    for wanted in schema.fields:
        known = _KNOWN.get(wanted.name)
        if known is None:
            raise SourceError(f"unknown column {wanted.name!r}: for the columns see sbus-record(5)")
        if (kind := _TYPES[str(known.type)]) != wanted.dataType.simpleString():
            raise SourceError(f"column {wanted.name!r} has the type {kind}, not {wanted.dataType.simpleString()}")
        fields.append(pa.field(known.name, known.type, nullable=wanted.nullable))
    return pa.schema(fields)


CHUNK_ROWS = 1000
"""Messages between two progress notes. A note syncs the disk, and 1000 messages make that cheap; after a kill, at most this number
of messages is published twice.
"""

InDoubt = Literal["repeat", "skip"]
Unreadable = Literal["fail", "skip"]
"""What to do with an index entry that cannot be read."""

_ID = re.compile(r"[0-9a-f-]{8,64}")

_NAMES = {
    name.lower(): name
    for name in (
        "path",
        "address",
        "key",
        "host",
        "kind",
        "since",
        "until",
        "maxRowsPerTrigger",
        "outbox",
        "token",
        "chunkRows",
        "inDoubt",
        "unreadable",
        "segments",
        "checkpointLocation",
    )
}
_KINDS = frozenset(kind.value for kind in RowKind)
_OF_SPARK = frozenset({"queryname", "outputmode"})

Operator = Literal["in", ">=", "<"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options; None where an option is not given."""

    archive: ArchivePath | None = None
    address: str | None = None
    key: bytes = b""
    """Pattern of the keys to read, as in a subscription; the empty pattern also matches reserved keys."""
    conditions: tuple[Condition, ...] = ()
    """The options ``host``, ``kind``, ``since`` and ``until``."""
    max_rows: int | None = None
    outbox: Path | None = None
    token: str | None = None
    chunk_rows: int = CHUNK_ROWS
    in_doubt: InDoubt = "repeat"
    checkpoint: Path | None = None
    unreadable: Unreadable = "fail"
    segments: tuple[SegmentName, ...] | None = None
    """The segments to read; None for all."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Return the options in *given*.

        Raises:
            SourceError: an option is unknown or invalid.
        """
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(options.keys() - _NAMES.keys() - _OF_SPARK):
            raise SourceError(f"unknown option {unknown[0]!r}: the options of format sbus are {', '.join(sorted(_NAMES.values()))}")
        in_doubt = options.get("indoubt", "repeat")
        if in_doubt not in ("repeat", "skip"):
            raise SourceError(f"invalid option inDoubt {in_doubt!r}: use repeat or skip")
        unreadable = options.get("unreadable", "fail")
        if unreadable not in ("fail", "skip"):
            raise SourceError(f"invalid option unreadable {unreadable!r}: use fail or skip")
        key = options.get("key", "").encode("utf-8")
        if b"\0" in key:
            raise SourceError("invalid option key: a pattern cannot contain NUL")
        max_rows = _count(options, "maxrowspertrigger")
        return cls(
            archive=_archive(options),
            address=options.get("address"),
            key=key,
            conditions=tuple(_conditions(options)),
            max_rows=max_rows,
            outbox=_outbox(options),
            token=options.get("token"),
            chunk_rows=_count(options, "chunkrows") or CHUNK_ROWS,
            in_doubt=cast("InDoubt", in_doubt),
            checkpoint=_local(options, "checkpointlocation"),
            unreadable=cast("Unreadable", unreadable),
            segments=_segments(options),
        )

    def query(self) -> str:
        """Return the id of this streaming query, from its checkpoint. It distinguishes its batches from those of other queries.

        If only Spark knows the checkpoint, it is ``query``; then the outbox can serve one checkpoint only.

        Raises:
            SourceError: the checkpoint has no id.
        """
        if self.checkpoint is None:
            return "query"
        try:
            found = json.loads((self.checkpoint / "metadata").read_bytes())["id"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, str) or _ID.fullmatch(found) is None:
            raise SourceError(f"{self.checkpoint}: not the checkpoint of a query: it contains no query id")
        return found


def _conditions(options: Mapping[str, str]) -> Iterator[Condition]:
    """Yield the conditions in the options."""
    names: tuple[Literal["host", "kind"], ...] = ("host", "kind")
    for name in names:
        if name in options:
            values = tuple(value.strip() for value in options[name].split(","))
            if not all(is_host(value) if name == "host" else value in _KINDS for value in values):
                raise SourceError(f"invalid option {name} {options[name]!r}: use comma-separated names, see sbus-record(5)")
            yield Condition(name, "in", values)
    bounds: tuple[tuple[str, Operator], ...] = (("since", ">="), ("until", "<"))
    for bound, operator in bounds:
        if bound in options:
            yield Condition("ts", operator, (_nanoseconds(bound, options[bound]),))


def _nanoseconds(name: str, text: str) -> int:
    """Return the time in *text*, in nanoseconds since 1970."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise SourceError(f"invalid option {name} {text!r}: use a date or time in UTC, such as 2026-11-20 or 2026-11-20T15:30") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(microseconds=1) * 1000


def _outbox(options: Mapping[str, str]) -> Path | None:
    """Return the directory of the outbox: the option, or one in the checkpoint of the query."""
    if "outbox" in options:
        return _local(options, "outbox")
    checkpoint = _local(options, "checkpointlocation")
    return None if checkpoint is None else checkpoint / "sbus-outbox"


def _archive(options: Mapping[str, str]) -> ArchivePath | None:
    """Return the archive, None if it is not given."""
    text = options.get("path")
    try:
        return None if text is None else parse_location(text)
    except LocationError as error:
        raise SourceError(f"invalid option path: {error}") from None


def _segments(options: Mapping[str, str]) -> tuple[SegmentName, ...] | None:
    """Return the segments, None if the option is not given."""
    text = options.get("segments")
    try:
        return None if text is None else tuple(SegmentName.parse(path.strip()) for path in text.split(","))
    except ValueError as error:
        raise SourceError(f"invalid option segments: {error}. Use comma-separated paths from the index, see sbus-record(5)") from None


def _local(options: Mapping[str, str], name: str) -> Path | None:
    """Return an option that is a local directory, None if it is not given."""
    text = options.get(name)
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("", "file") or parts.netloc or not parts.path:
        raise SourceError(f"invalid option {_NAMES[name]} {text!r}: use a directory of this machine")
    # Only a URL has percent escapes.
    return Path(unquote(parts.path) if parts.scheme else text)


def _count(options: Mapping[str, str], name: str) -> int | None:
    """Return an option that is an integer, at least 1; None if it is not given."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 18 and int(text)):
        raise SourceError(f"invalid option {_NAMES[name]} {text!r}: use an integer, at least 1")
    return int(text)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on ``host``, ``kind`` or ``ts``. ``values`` has any number of values for ``in``, else one."""

    column: Literal["host", "kind", "ts"]
    operator: Operator
    values: tuple[str | int, ...]

    @property
    def is_of_folders(self) -> bool:
        """Whether the column is a directory."""
        return self.column == "host"

    def expression(self) -> pc.Expression:
        """Return the condition as an Arrow expression."""
        field = pc.field(self.column)
        if self.operator == "in":
            return field.isin(list(self.values))
        return field >= self.values[0] if self.operator == ">=" else field < self.values[0]

    def may_hold(self, entry: IndexEntry) -> bool:
        """Return whether any row of the segment of *entry* can match; for a directory column, whether all match."""
        if self.column == "host":
            return entry.host in self.values
        if self.column == "kind":
            return not entry.kinds or any(kind in self.values for kind in entry.kinds)
        bound = int(self.values[0])
        return entry.max_ts >= bound if self.operator == ">=" else entry.min_ts < bound

    def may_hold_in(self, host: str, start: int, end: int) -> bool:
        """Return whether any row of *host* from *start* to *end* (exclusive), nanoseconds since 1970, can match."""
        if self.column == "host":
            return host in self.values
        if self.column == "kind":
            return True
        bound = int(self.values[0])
        return end > bound if self.operator == ">=" else start < bound
