"""The tables of the store's file, the numbers in them, and their rows as messages.

A message has the number ``stream << 48 | seq``, so one stream is a range of the table. Each statement finds its rows with an index or by
such a range: no operation takes longer because the store holds more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sbus_services.store.engine.messages import NO_UID, Gap, Sender, Stored

APPLICATION_ID = 0x73627573
"""``sbus``, in the header of the file: see file(1)."""

VERSION = 1
"""The version of these tables, in the header of the file."""

SEQ_BITS = 48

MAX_SEQ = (1 << SEQ_BITS) - 1

READY, LEASED, DELAYED, RETRYING, BLOCKED, DEAD, DATED = range(7)
"""The states of a job. DELAYED: not yet due. RETRYING: a try failed. BLOCKED: an earlier job of its key is under way. DATED: ready at a
date."""

TABLES = """
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    last_seq INTEGER NOT NULL DEFAULT 0,
    messages INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    keys INTEGER NOT NULL DEFAULT 0,         -- counted if is_keyed
    gaps INTEGER NOT NULL DEFAULT 0,
    removed INTEGER NOT NULL DEFAULT 0,      -- messages that retention removed
    removed_seq INTEGER NOT NULL DEFAULT 0,  -- the last of them
    is_keyed INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE host (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- An account pays for what it has: a uid, or the negative number of another host. The sender of a message can be another one, with an id
-- that subuid(5) gives to the account.
CREATE TABLE usage (
    stream INTEGER NOT NULL,
    account INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    keys INTEGER NOT NULL,
    ids INTEGER NOT NULL,
    PRIMARY KEY (stream, account)
) WITHOUT ROWID;
CREATE TABLE message (
    id INTEGER PRIMARY KEY,                  -- stream << 48 | seq
    stream INTEGER NOT NULL,
    time INTEGER NOT NULL,                   -- milliseconds since 1970
    key BLOB NOT NULL,                       -- of a gap: the pattern
    account INTEGER NOT NULL,
    uid INTEGER,                             -- of the sender, NULL: the account; of a gap: of the user that acknowledged it,
                                             -- also 0 if it is expected
    gid INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    origin TEXT,
    expires INTEGER,                         -- by the clock that does not jump
    gap INTEGER,                             -- number of missing messages; NULL: a message
    crc INTEGER,                             -- see checksums.py; NULL: a gap
    payload BLOB NOT NULL                    -- of a gap: the reason; last, so that long ones need not be read for the others
);
CREATE INDEX message_key ON message (stream, key) WHERE gap IS NULL;
CREATE INDEX message_expires ON message (expires) WHERE expires IS NOT NULL;
CREATE INDEX message_gap ON message (stream) WHERE gap IS NOT NULL;
CREATE TABLE put_id (
    stream INTEGER NOT NULL,
    account INTEGER NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    time INTEGER NOT NULL,
    PRIMARY KEY (stream, account, id)
) WITHOUT ROWID;
CREATE INDEX put_id_age ON put_id (stream, account, seq);
CREATE INDEX put_id_time ON put_id (time);
CREATE TABLE reader (
    stream INTEGER NOT NULL,
    uid INTEGER NOT NULL,
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,                    -- next to read
    PRIMARY KEY (stream, uid, name)
) WITHOUT ROWID;
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    stream INTEGER NOT NULL,
    is_ordered INTEGER NOT NULL,
    left_seq INTEGER,                        -- the last message with a job when the queue left the configuration
    ready INTEGER NOT NULL DEFAULT 0,
    leased INTEGER NOT NULL DEFAULT 0,
    delayed INTEGER NOT NULL DEFAULT 0,
    retrying INTEGER NOT NULL DEFAULT 0,
    blocked INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    dated INTEGER NOT NULL DEFAULT 0,
    dropped_dead INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, stream)
);
CREATE TABLE job (
    id INTEGER PRIMARY KEY,                  -- of its message
    queue INTEGER NOT NULL,
    state INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,
    at INTEGER,                              -- when it is due, its lease ends, or it died; see clocks.py for the clocks
    lease INTEGER,
    connection INTEGER,
    born INTEGER,                            -- identity of that connection, 0: unknown; its number is used again after a crash of the bus
    uid INTEGER,
    line INTEGER,                            -- digest of its key, if the queue is ordered
    reason TEXT
);
CREATE INDEX job_state ON job (queue, state);
CREATE INDEX job_at ON job (queue, state, at) WHERE at IS NOT NULL;
CREATE INDEX job_holder ON job (connection, lease) WHERE connection IS NOT NULL;
CREATE INDEX job_line ON job (queue, line, state) WHERE line IS NOT NULL;
CREATE TABLE number (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO number VALUES ('lease', 0), ('unpublished', 0);
CREATE TABLE text (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE run (place INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER NOT NULL UNIQUE);
CREATE TABLE run_start (stream INTEGER NOT NULL, place INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (stream, place)) WITHOUT ROWID;
CREATE TABLE unpublished (stream INTEGER NOT NULL, seq INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (stream, seq)) WITHOUT ROWID;
CREATE TABLE ended (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    stream INTEGER NOT NULL, key BLOB NOT NULL, account INTEGER NOT NULL, gid INTEGER NOT NULL, pid INTEGER NOT NULL, origin TEXT
);
CREATE TABLE dead_letter (place INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL UNIQUE);
CREATE TABLE damaged (id INTEGER PRIMARY KEY, time INTEGER NOT NULL); -- time 0: acknowledged
"""


def message_id(stream: int, seq: int) -> int:
    """Return the number of the message *seq* of the stream with the number *stream*; *seq* is cut to the valid range."""
    return stream << SEQ_BITS | min(max(seq, 0), MAX_SEQ)


def seq_of(message: int) -> int:
    """Return the number in its stream of the message with the number *message*."""
    return message & MAX_SEQ


MESSAGE_BYTES = 100
"""What a message or gap counts in addition to its key and payload: so small ones are not free."""

SENDER_UID = "COALESCE(message.uid, account)"
"""The uid of the sender, or the negative number of its host."""

COLUMNS = f"message.id, time, key, payload, {SENDER_UID}, gid, pid, origin, expires, gap, crc, account"

SIZE = f"LENGTH(key) + LENGTH(payload) + {MESSAGE_BYTES}"

WIDTH = 12
"""Number of COLUMNS: what a statement selects in addition follows."""


class Removable(NamedTuple):
    """What must be known about a message to remove it: ``SELECT id, account, <SIZE>, gap, key``."""

    id: int
    account: int
    size: int
    gap: int | None
    key: bytes


REMOVABLE = f"message.id, account, {SIZE}, gap, key"


def size_of(key: bytes, payload: bytes) -> int:
    """Return what a message with this key and payload counts, in bytes."""
    return len(key) + len(payload) + MESSAGE_BYTES


def message_of(row: tuple[Any, ...]) -> Stored:
    """Return the message in *row*, which has COLUMNS."""
    sender = Sender(max(row[4], NO_UID), row[5], row[6], row[7] or "")
    return Stored(seq_of(row[0]), row[1], row[2], row[3], sender, row[8] or 0)


def item_of(row: tuple[Any, ...]) -> Stored | Gap:
    """Return the message or gap in *row*, which has COLUMNS."""
    if row[9] is None:
        return message_of(row)
    return Gap(seq_of(row[0]), row[1], row[2], row[9], row[3].decode("utf-8", "replace"))
