"""The columns of ``sbusctl top``: field, format, and rank, which decides which columns fit into a narrow terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sbusd.ctl.quantities import NOTHING, compact_bytes, compact_count
from sbusd.ctl.tables import Column
from sbusd.ctl.top.rates import Row

GAP = 1
"""Spaces between two columns."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the live table."""

    name: str
    """The name for ``--sort``."""
    source: str
    """The name in the row."""
    heading: str
    width: int
    rank: int
    """Columns with the lowest ranks are shown if the terminal is narrow."""
    show: Callable[[object], str]
    is_number: bool = True

    def cell(self, row: Row) -> str:
        """Return the text of this column for *row*."""
        return self.show(row.get(self.source))

    def column(self) -> Column:
        """Return the column for a plain table."""
        return Column(self.heading, is_number=self.is_number)


def _text(value: object) -> str:
    """Return a text, or a dash."""
    return value if isinstance(value, str) else NOTHING


def _exact(value: object) -> str:
    """Return an identifying number."""
    return str(value) if isinstance(value, int) else NOTHING


def _count(value: object) -> str:
    """Return a count or a rate."""
    return compact_count(value if isinstance(value, int | float) else None)


def _bytes(value: object) -> str:
    """Return a size, or a rate of bytes."""
    return compact_bytes(value if isinstance(value, int | float) else None)


def _percent(value: object) -> str:
    """Return a fraction of 1 in percent, rounded down: 100% means exhausted."""
    return f"{int(value * 100)}%" if isinstance(value, float) else NOTHING


def _of_a_second(value: object) -> str:
    """Return milliseconds per second in percent; it can exceed 100%."""
    return f"{value / 10:.0f}%" if isinstance(value, int | float) else NOTHING


_WHO = Field("user", "user", "USER", 8, 1, _text, is_number=False)

_FLOWS = (
    Field("in", "received_packets_per_second", "IN/s", 5, 2, _count),
    Field("in-bytes", "received_bytes_per_second", "INB/s", 5, 11, _bytes),
    Field("out", "delivered_packets_per_second", "OUT/s", 5, 2, _count),
    Field("out-bytes", "delivered_bytes_per_second", "OUTB/s", 6, 11, _bytes),
    Field("queued", "queued_packets", "QUEUED", 6, 3, _count),
    Field("queued-bytes", "queued_bytes", "QBYTES", 6, 4, _bytes),
    Field("kernel-in", "bus_receive_bytes", "K-IN", 5, 6, _bytes),
    Field("kernel-out", "client_receive_bytes", "K-OUT", 5, 5, _bytes),
    Field("lost", "lost_packets", "LOST", 5, 3, _count),
    Field("lost-rate", "lost_packets_per_second", "LOST/s", 6, 13, _count),
    Field("replaced", "replaced_packets", "REPL", 5, 18, _count),
    Field("refused", "refused_packets", "REFUSED", 7, 14, _count),
    Field("blocked", "blocked_ms_per_second", "BLKD", 5, 7, _of_a_second),
    Field("blocks", "blocked_others_ms_per_second", "BLKS", 5, 8, _of_a_second),
)

CONNECTION_FIELDS = (
    Field("id", "id", "ID", 6, 16, _exact),
    _WHO,
    Field("pid", "pid", "PID", 7, 2, _exact),
    Field("command", "command", "COMMAND", 14, 2, _text, is_number=False),
    Field("unit", "unit", "UNIT", 20, 12, _text, is_number=False),
    Field("subscriptions", "subscriptions", "SUBS", 5, 15, _count),
    *_FLOWS,
    Field("blocked-by", "blocked_by", "BLKD-BY", 10, 9, _text, is_number=False),
    Field("mode", "mode", "MODE", 20, 17, _text, is_number=False),
)
"""The columns of the table by connection."""

USER_FIELDS = (
    _WHO,
    Field("connections", "connections", "CONNS", 5, 2, _count),
    Field("subscriptions", "subscriptions", "SUBS", 5, 5, _count),
    Field("pattern-bytes", "pattern_bytes", "PBYTES", 6, 10, _bytes),
    Field("quota", "quota_share", "QUOTA", 5, 4, _percent),
    Field("denied", "quota_refusals", "DENIED", 6, 7, _count),
    *_FLOWS,
)
"""The columns of the table by user."""


def fitting(fields: Sequence[Field], width: int, wanted: str) -> list[Field]:
    """Return those of *fields*, in order, that fit into *width* columns: the field *wanted* first, then by rank."""
    kept: list[Field] = []
    room = width + GAP
    for each in sorted(fields, key=lambda field: (field.name != wanted, field.rank)):
        if each.width + GAP <= room:
            room -= each.width + GAP
            kept.append(each)
    return [each for each in fields if each in kept]
