"""The display of ``sbusctl top``: its columns, for a terminal of a given size, or complete for a pipe.

A column has a rank, which decides whether it fits into a narrow terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from rich.cells import cell_len, set_cell_size

from sbusctl.formatting import (
    NOTHING,
    Column,
    compact_bytes,
    compact_count,
    human_bytes,
    human_duration,
    human_plural,
    table_lines,
)
from sbusctl.output import visible
from sbusctl.top.samples import Row

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


def show_text(value: object) -> str:
    """Return a text, or a dash."""
    return value if isinstance(value, str) else NOTHING


def _show_exact(value: object) -> str:
    """Return an identifying number."""
    return str(value) if isinstance(value, int) else NOTHING


def show_count(value: object) -> str:
    """Return a count or a rate."""
    return compact_count(value if isinstance(value, int | float) else None)


def show_bytes(value: object) -> str:
    """Return a size, or a rate of bytes."""
    return compact_bytes(value if isinstance(value, int | float) else None)


def _show_percent(value: object) -> str:
    """Return a fraction of 1 in percent, rounded down: 100% means exhausted."""
    return f"{int(value * 100)}%" if isinstance(value, float) else NOTHING


def _show_of_a_second(value: object) -> str:
    """Return milliseconds per second in percent; it can exceed 100%."""
    return f"{value / 10:.0f}%" if isinstance(value, int | float) else NOTHING


_WHO = Field("user", "user", "USER", 8, 1, show_text, is_number=False)

_FLOWS = (
    Field("in", "received_packets_per_second", "IN/s", 5, 2, show_count),
    Field("in-bytes", "received_bytes_per_second", "INB/s", 5, 11, show_bytes),
    Field("out", "delivered_packets_per_second", "OUT/s", 5, 2, show_count),
    Field("out-bytes", "delivered_bytes_per_second", "OUTB/s", 6, 11, show_bytes),
    Field("queued", "queued_packets", "QUEUED", 6, 3, show_count),
    Field("queued-bytes", "queued_bytes", "QBYTES", 6, 4, show_bytes),
    Field("kernel-in", "bus_receive_bytes", "K-IN", 5, 6, show_bytes),
    Field("kernel-out", "client_receive_bytes", "K-OUT", 5, 5, show_bytes),
    Field("lost", "lost_packets", "LOST", 5, 3, show_count),
    Field("lost-rate", "lost_packets_per_second", "LOST/s", 6, 13, show_count),
    Field("replaced", "replaced_packets", "REPL", 5, 18, show_count),
    Field("refused", "refused_packets", "REFUSED", 7, 14, show_count),
    Field("blocked", "blocked_ms_per_second", "BLKD", 5, 7, _show_of_a_second),
    Field("blocks", "blocked_others_ms_per_second", "BLKS", 5, 8, _show_of_a_second),
)

CONNECTION_FIELDS = (
    Field("id", "id", "ID", 6, 16, _show_exact),
    _WHO,
    Field("pid", "pid", "PID", 7, 2, _show_exact),
    Field("command", "command", "COMMAND", 14, 2, show_text, is_number=False),
    Field("unit", "unit", "UNIT", 20, 12, show_text, is_number=False),
    Field("slice", "slice", "SLICE", 20, 19, show_text, is_number=False),
    Field("subscriptions", "subscriptions", "SUBS", 5, 15, show_count),
    *_FLOWS,
    Field("blocked-by", "blocked_by", "BLKD-BY", 10, 9, show_text, is_number=False),
    Field("mode", "mode", "MODE", 20, 17, show_text, is_number=False),
)
"""The columns of the table by connection."""

USER_FIELDS = (
    _WHO,
    Field("connections", "connections", "CONNS", 5, 2, show_count),
    Field("subscriptions", "subscriptions", "SUBS", 5, 5, show_count),
    Field("pattern-bytes", "pattern_bytes", "PBYTES", 6, 10, show_bytes),
    Field("quota", "quota_share", "QUOTA", 5, 4, _show_percent),
    Field("denied", "quota_refusals", "DENIED", 6, 7, show_count),
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


class Report(Protocol):
    """What is displayed."""

    @property
    def fields(self) -> Sequence[Field]:
        """The columns of the table."""

    @property
    def head(self) -> list[str]:
        """The lines above the table."""

    @property
    def rows(self) -> list[Row]:
        """The rows of the table, in display order."""

    @property
    def sorted_by(self) -> str:
        """The column that is always shown."""

    def as_json(self) -> dict[str, object]:
        """Return the whole report as a JSON object."""


@dataclass(frozen=True, slots=True)
class TopReport:
    """The changes between two samples."""

    clock: float
    """Time, in seconds since 1970."""
    seconds: float | None
    """Seconds between the samples; None for the first."""
    scope: str
    """``bus`` if the totals are those of the bus, ``connections`` if they are sums over the visible connections."""
    totals: Row
    rows: list[Row]
    """In display order."""
    by_user: bool
    sorted_by: str
    unseen: str
    """The reason if the queues of the kernel are unknown, else empty."""

    @property
    def fields(self) -> Sequence[Field]:
        """The columns of the table."""
        return USER_FIELDS if self.by_user else CONNECTION_FIELDS

    @property
    def head(self) -> list[str]:
        """The lines above the table."""
        return head_lines(self)

    def as_json(self) -> dict[str, object]:
        """Return the whole report as a JSON object."""
        kernel: dict[str, object] = {"available": not self.unseen}
        if self.unseen:
            kernel["reason"] = self.unseen
        return {
            "time": round(self.clock, 3),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "scope": self.scope,
            "totals": self.totals,
            "kernel": kernel,
            "users" if self.by_user else "connections": self.rows,
        }


def plain_lines(report: Report, *, legend: bool) -> list[str]:
    """Return the report for a pipe, with all columns, without truncation."""
    columns = [field.column() for field in report.fields]
    cells = [[field.cell(row) for field in report.fields] for row in report.rows]
    head = [*report.head, ""] if legend else []
    return head + table_lines(columns, cells, legend=legend, width=None)


def terminal_lines(report: Report, *, legend: bool, width: int, height: int | None = None) -> list[str]:
    """Return the report for a terminal of *width* columns and *height* lines; None: any height.

    Columns have fixed widths, so that they do not move between reports.
    """
    fields = fitting(report.fields, width, report.sorted_by)
    lines = [*report.head, ""] if legend else []
    if legend:
        lines.append(_line(fields, [field.heading for field in fields]))
    shown = report.rows
    if height is not None and len(lines) + len(shown) > height:
        shown = shown[: max(0, height - len(lines) - 1)]
    lines += [_line(fields, [visible(field.cell(row)) for field in fields]) for row in shown]
    if len(shown) < len(report.rows):
        lines.append(f"… {len(report.rows) - len(shown)} more")
    cut = [_cut(line, width) for line in lines]
    return cut if height is None else cut[:height]


def head_lines(report: TopReport) -> list[str]:
    """Return the totals, in lines of less than 80 characters unless the numbers are very large."""
    sums = report.totals
    connections, hidden = _integer(sums, "connections"), _integer(sums, "hidden")
    now = datetime.fromtimestamp(report.clock, UTC).astimezone().strftime("%H:%M:%S")
    uptime = sums.get("uptime_seconds")
    up = f" up {human_duration(uptime)}," if isinstance(uptime, float) else ""
    whose = "" if report.scope == "bus" else "; totals of those listed"
    lines = [
        f"{now}{up} {human_plural(connections, 'connection')}, {hidden} of other users hidden{whose}",
        f"in {_both(sums, 'received')}, out {_both(sums, 'delivered')}, "
        f"lost {_rate(sums, 'lost_packets')}/s, refused {_rate(sums, 'refused_packets')}/s",
        f"queued {_count(sums, 'queued_packets')} ({_bytes(sums, 'queued_bytes')}), "
        f"lost {_count(sums, 'lost_packets')}, refused {_count(sums, 'refused_packets')}",
    ]
    return [*lines, report.unseen] if report.unseen else lines


def _both(sums: Row, what: str) -> str:
    """Return packets and bytes per second."""
    return f"{_rate(sums, f'{what}_packets')}/s ({_bytes(sums, f'{what}_bytes_per_second')}/s)"


def _rate(sums: Row, counter: str) -> str:
    """Return a rate."""
    return compact_count(_number(sums, f"{counter}_per_second"))


def _count(sums: Row, name: str) -> str:
    """Return a count."""
    return compact_count(_number(sums, name))


def _bytes(sums: Row, name: str) -> str:
    """Return a size."""
    value = _number(sums, name)
    return human_bytes(None if value is None else round(value))


def _number(sums: Row, name: str) -> float | None:
    """Return a number, or None."""
    value = sums.get(name)
    return value if isinstance(value, int | float) else None


def _integer(sums: Row, name: str) -> int:
    """Return a count, 0 if there is none."""
    value = sums.get(name)
    return value if isinstance(value, int) else 0


def _line(fields: Sequence[Field], cells: Sequence[str]) -> str:
    """Return a line of cells in columns. Long text is truncated, numbers are not."""
    placed = []
    for field, cell in zip(fields, cells, strict=True):
        if field.is_number:
            placed.append(cell.rjust(field.width))
        else:
            placed.append(set_cell_size(_cut(cell, field.width), field.width))
    return (" " * GAP).join(placed).rstrip()


def _cut(text: str, width: int) -> str:
    """Return *text*, truncated to *width* columns of a terminal."""
    return text if cell_len(text) <= width else f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"
