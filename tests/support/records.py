"""Rows of a record, made up: fixed ones for examples, and strategies for any."""

from __future__ import annotations

from hypothesis import strategies as st

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Role, Row, RowKind, key_text

NOON = 1_795_176_000 * 10**9
"""2026-11-20 12:00 UTC, in nanoseconds."""


def message(seq: int, key: str = "a/b", payload: bytes = b"x", *, ts: int | None = None) -> Row:
    """Return a message from user 1000, routed to two connections a microsecond after the one before it."""
    return Row(
        ts=NOON + seq * 1_000 if ts is None else ts,
        seq=seq,
        kind=RowKind.MESSAGE,
        key=key,
        conn=7,
        uid=1000,
        gid=1000,
        pid=4321,
        unit="app.service",
        recipients=2,
        queued=1,
        discarded=0,
        payload=payload,
        payload_bytes=len(payload),
    )


_INT32 = st.integers(0, 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_IDS = st.none() | st.integers(0, 2**32 - 1)
_TEXT = st.none() | st.text("aZ/é😀\x01 \\", max_size=8)

KEYS = st.binary(max_size=12).filter(lambda key: b"\0" not in key)


@st.composite
def rows(draw: st.DrawFn, hours: int = 3) -> Row:
    """Return any row, of one of *hours* hours; its ``seq`` is 0 until :func:`numbered` gives it one."""
    payload = draw(st.none() | st.binary(max_size=20))
    return Row(
        ts=NOON + draw(st.integers(0, hours * HOUR_NS - 1)),
        seq=0,
        kind=draw(st.sampled_from(RowKind)).value,
        key=draw(st.none() | KEYS.map(key_text)),
        conn=draw(st.none() | st.integers(0, 2**62)),
        uid=draw(_IDS),
        gid=draw(_IDS),
        pid=draw(_IDS),
        unit=draw(_TEXT),
        recipients=draw(st.none() | _INT32),
        queued=draw(st.none() | _INT32),
        discarded=draw(st.none() | _INT32),
        payload=payload,
        payload_bytes=draw(st.none() | _INT32),
        call_id=draw(st.none() | _INT64),
        call_role=draw(st.none() | st.sampled_from([role.value for role in Role])),
        call_cmd=draw(_TEXT),
        call_exp=draw(st.none() | _INT64),
        call_failed=draw(st.none() | st.booleans()),
        code=draw(_TEXT),
        reason=draw(_TEXT),
        lost=draw(st.none() | st.integers(0, 2**40)),
        duration=draw(st.none() | _INT64),
        twin=draw(st.none() | _INT64),
        attempt=draw(st.none() | _INT32),
        packet=draw(_TEXT),
        missed=draw(st.none() | st.lists(st.integers(0, 2**62), max_size=3)),
        vouched=draw(_TEXT),
        to_conn=draw(st.none() | st.integers(1, 2**62)),
    )


def numbered(some: list[Row], first_seq: int = 1) -> list[Row]:
    """Return *some* with ``seq`` rising from *first_seq*."""
    return [row._replace(seq=first_seq + position) for position, row in enumerate(some)]
