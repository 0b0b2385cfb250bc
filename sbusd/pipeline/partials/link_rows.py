"""Rows for the table ``links``: the valid states that links published. Nothing is summed here, because a state is compared with others."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.record.schema import RowKind
from sbusd.archive.record.segments import RecordReader
from sbusd.pipeline.partials.link_states import KEY, read_state
from sbusd.pipeline.partials.portions import Portion
from sbusd.pipeline.partials.rows import read_rows

UNIT = "sbus-link.service"
"""Only root and this system unit publish states: a bus without the rules of the package lets every user do it."""

COUNTERS = ("messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped")
"""The counters of an entry of a state."""

_ENTRY = pa.struct([pa.field("name", pa.string()), pa.field("alive", pa.bool_()), *(pa.field(name, pa.int64()) for name in COUNTERS)])
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("ts", "seq")),
        pa.field("is_following", pa.bool_()),
        *(pa.field(name, pa.string()) for name in ("realm", "link")),
        *(pa.field(name, pa.int64()) for name in ("started", "spooled", "omitted")),
        pa.field("entries", pa.list_(_ENTRY)),
    ]
)
"""The columns of a state; ``is_following``: it is of an hour after those that are computed."""


def links(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield the valid states of links: one row each, ``entries`` has the link itself and the other hosts."""
    is_trusted = (pc.field("uid") == 0) | (pc.field("unit") == UNIT)
    wanted = (pc.field("kind") == RowKind.MESSAGE.value) & (pc.field("key") == KEY) & is_trusted & pc.field("vouched").is_null()
    for entry in portion.segments:
        # Reading the payloads takes longer than all else, and few segments have a state.
        if next(read_rows(record, [entry], ["seq"], wanted), None) is None:
            continue
        for rows in read_rows(record, [entry], ["ts", "seq", "payload"], wanted):
            found = [state for row in rows.to_pylist() if (state := _state(row["ts"], row["seq"], row["payload"])) is not None]
            yield pa.Table.from_pylist([{**state, "is_following": portion.is_following} for state in found], SCHEMA)


def _state(ts: int, seq: int, payload: bytes | None) -> dict[str, object] | None:
    """Return the state in a message; None if it has none."""
    state = read_state(payload)
    # Otherwise a clock that was set back could place the same start in two hours.
    if state is None or ts // HOUR_NS < state.started // HOUR_NS:
        return None
    return {"ts": ts, "seq": seq, **state._asdict(), "entries": [entry._asdict() for entry in state.entries]}
