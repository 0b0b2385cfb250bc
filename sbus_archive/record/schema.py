r"""The rows of the record: kinds, the names, types and meaning of the columns, and keys as text. Spec: sbus-record(5).

The meaning of each column is in its metadata, so every segment documents itself. ``date``, ``hour`` and ``host`` are not in the schema:
they are directories, and readers of a whole archive get them as columns.

A key is any bytes without NUL, but a string column holds UTF-8 only. The conversion is exact, and different keys have different texts.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

import pyarrow as pa

_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2})")
_STRAY = re.compile(r"[\udc80-\udcff]")


def key_text(key: bytes) -> str:
    """Return *key*, or a pattern, as text of the record."""
    if b"\\" in key:
        key = key.replace(b"\\", b"\\\\")
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return _STRAY.sub(lambda stray: f"\\x{ord(stray[0]) - 0xDC00:02x}", key.decode("utf-8", "surrogateescape"))


def key_bytes(text: str) -> bytes:
    """Return the key whose :func:`key_text` is *text*.

    Raises:
        ValueError: *text* has a backslash that does not begin an escape sequence.
    """
    if "\\" not in text:
        return text.encode("utf-8")
    if "\\" in _ESCAPE.sub("", text):
        raise ValueError(f"invalid key {text!r}: write a backslash as \\\\ and a byte that is not UTF-8 as \\xNN")
    pieces = (_unescaped(piece) for piece in re.split(r"(\\\\|\\x[0-9a-f]{2})", text))
    return b"".join(pieces)


def _unescaped(piece: str) -> bytes:
    """Return one escape sequence, or text without any, as bytes."""
    if piece == r"\\":
        return b"\\"
    return bytes.fromhex(piece[2:]) if piece.startswith(r"\x") else piece.encode("utf-8")


class RowKind(enum.StrEnum):
    """The event of a row; the value is stored in the column ``kind``."""

    MESSAGE = "message"
    """The bus routed a message."""
    CONNECT = "connect"
    """A client connected."""
    DISCONNECT = "disconnect"
    """A client's connection ended."""
    SUBSCRIBE = "subscribe"
    """A client added a pattern: ``key``."""
    UNSUBSCRIBE = "unsubscribe"
    """A client removed a pattern: ``key``."""
    SNAPSHOT = "snapshot"
    """A client already has the pattern ``key``. The recorder repeats all known subscriptions at the start of each hour and after a
    ``gap``, so that the recipients of an hour can be derived from the rows of that hour alone. After a ``restart`` it knows none."""
    DENIAL = "denial"
    """The bus refused a request of a client: ``packet``, ``code``, ``reason``; ``key`` is the key or pattern."""
    LOSS = "loss"
    """``lost`` messages for the client ``conn`` were discarded."""
    TAP_LOSS = "tap_loss"
    """``lost`` rows are missing here: the recorder was too slow, and the bus discarded them."""
    GAP = "gap"
    """``lost`` rows are missing here, for ``duration`` nanoseconds: the recorder could not write because of ``reason``."""
    RESTART = "restart"
    """The recorder has a new connection to the bus, after ``duration`` nanoseconds without one. The number of missing rows is unknown."""
    RELAY = "relay"
    """The relay tried to forward a call to another host: ``twin``, ``attempt``; ``code`` and ``reason`` are the outcome."""


class Role(enum.StrEnum):
    """The role of a message in a call; the value is stored in the column ``call_role``."""

    REQUEST = "request"
    """A request, published to ``rpc/<cmd>``, ``!/conn/<id>/rpc/<cmd>`` or ``relay/<twin>/<cmd>``."""
    REPLY = "reply"
    """Its reply, published to the key that the request specified."""


VERSION = 1
"""Version of the schema. A recorder rejects a write-ahead log of another version."""

SORT_KEYS = ("kind", "key", "ts", "seq")
"""Sort order of the rows of a segment: the columns that most queries filter by come first."""


def _column(name: str, kind: pa.DataType, doc: str, *, nullable: bool = True) -> pa.Field:
    """Return one column with its meaning."""
    return pa.field(name, kind, nullable=nullable, metadata={"doc": doc})


SCHEMA = pa.schema(
    [
        _column("ts", pa.int64(), "time of the event by the host's clock, in nanoseconds since 1970-01-01 UTC", nullable=False),
        _column("seq", pa.int64(), "position in the record of this host; increases with each row, also across restarts", nullable=False),
        _column("kind", pa.string(), "kind of event", nullable=False),
        _column("key", pa.string(), "key of a message, pattern of a subscription, or key or pattern that was refused"),
        _column("conn", pa.int64(), "number of the connection that caused the event or is affected by it; 0 is the bus itself"),
        _column("uid", pa.int64(), "user id of that connection"),
        _column("gid", pa.int64(), "group id of that connection"),
        _column("pid", pa.int64(), "process id of that connection at the time it connected"),
        _column(
            "unit",
            pa.string(),
            "systemd unit of that process when it connected, as the bus read it; else when the recorder first saw the connection",
        ),
        _column("recipients", pa.int32(), "number of connections that the message was delivered to or queued for"),
        _column("queued", pa.int32(), "number of recipients that the message was queued for"),
        _column("discarded", pa.int32(), "number of connections that the message matched but was discarded for; not among the recipients"),
        _column("payload", pa.binary(), "payload of the message, complete or truncated; null if it was omitted"),
        _column("payload_bytes", pa.int32(), "length of the complete payload, in bytes"),
        _column("call_id", pa.int64(), "number shared by a request and its replies, and by no other call of any host"),
        _column("call_role", pa.string(), "request or reply"),
        _column("call_cmd", pa.string(), "command of the call"),
        _column("call_exp", pa.int64(), "time limit set by the caller, in seconds from the request; null: no limit"),
        _column("call_failed", pa.bool_(), "whether the reply reports an error"),
        _column("code", pa.string(), "errno name of a denial or a disconnect, or outcome of a relay attempt"),
        _column("reason", pa.string(), "text that explains the code, or why rows are missing"),
        _column("lost", pa.int64(), "number of lost packets, missing rows, packets still queued at a disconnect, or refused packets"),
        _column("duration", pa.int64(), "duration of a gap, an interruption or a relay attempt, in nanoseconds"),
        _column("twin", pa.int64(), "number of the remote host of a relay attempt"),
        _column("attempt", pa.int32(), "number of the relay attempt, counted from 1"),
        _column("packet", pa.string(), "first word of the refused packet, such as MSG; CONNECT for a refused connection"),
        _column(
            "missed",
            pa.list_(pa.field("element", pa.int64())),
            "connections with a matching subscription that did not receive the message: it was discarded, the connection was closing, "
            "the connection published it with echo off, or another member of its queue group received it; empty: more than 64; null: none",
        ),
        _column("vouched", pa.string(), "origin of a message that the connection published in the name of others; null: its own message"),
        _column("to_conn", pa.int64(), "number of the connection that alone could receive the message; null: all subscribers"),
    ]
)
"""The columns of a segment and of the write-ahead log."""

PARTITION_SCHEMA = pa.schema(
    [
        pa.field("date", pa.string(), nullable=False, metadata={"doc": "day of ts in UTC, YYYY-MM-DD"}),
        pa.field("hour", pa.int32(), nullable=False, metadata={"doc": "hour of ts in UTC, 0 to 23"}),
        pa.field("host", pa.string(), nullable=False, metadata={"doc": "host that recorded the row"}),
    ]
)
"""The columns that are directories."""


class Row(NamedTuple):
    """One row, in the order of :data:`SCHEMA`; None is null."""

    ts: int
    seq: int
    kind: str
    key: str | None = None
    conn: int | None = None
    uid: int | None = None
    gid: int | None = None
    pid: int | None = None
    unit: str | None = None
    recipients: int | None = None
    queued: int | None = None
    discarded: int | None = None
    payload: bytes | None = None
    payload_bytes: int | None = None
    call_id: int | None = None
    call_role: str | None = None
    call_cmd: str | None = None
    call_exp: int | None = None
    call_failed: bool | None = None
    code: str | None = None
    reason: str | None = None
    lost: int | None = None
    duration: int | None = None
    twin: int | None = None
    attempt: int | None = None
    packet: str | None = None
    missed: list[int] | None = None
    vouched: str | None = None
    to_conn: int | None = None


_SEQ = SCHEMA.names.index("seq")


def batch_of(rows: list[Row], first_seq: int | None = None) -> pa.RecordBatch:
    """Return *rows* as one batch of :data:`SCHEMA`; with *first_seq* they are numbered from there.

    Raises:
        pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError: a value does not fit its column, such as text with a lone surrogate.
    """
    columns: list[tuple[object, ...]] = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    if first_seq is not None:
        columns[_SEQ] = tuple(range(first_seq, first_seq + len(rows)))
    return pa.RecordBatch.from_arrays([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the rows of *table*, which has at least the columns of :data:`SCHEMA`. This is the inverse of :func:`batch_of`."""
    columns = [table.column(field.name).to_pylist() for field in SCHEMA]
    return [Row(*values) for values in zip(*columns, strict=True)]
