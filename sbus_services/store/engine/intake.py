"""Storing messages and gaps, within the limits of streams, users and the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sbus.protocol.framed_data import MAX_DELAY_SECONDS
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.protocol.printable import printable
from sbus_programs.config.quantities import show_size
from sbus_services.store.engine.checksums import checksum
from sbus_services.store.engine.database import Database, mount_of
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.messages import EngineError, NewMessage, PutResult
from sbus_services.store.engine.put_ids import PutIds, own_id
from sbus_services.store.engine.removal import Removal
from sbus_services.store.engine.schema import (
    BLOCKED,
    DATED,
    DEAD,
    DELAYED,
    MAX_SEQ,
    READY,
    REMOVABLE,
    Removable,
    message_id,
    size_of,
)
from sbus_services.store.engine.stream import JobLines, Queue, Stream, id_range, line_of


class DiskSpace:
    """The disk of *database*; below *min_free* bytes nothing is put."""

    def __init__(self, database: Database, min_free: int) -> None:
        self._database = database
        self._min_free = min_free

    def check(self) -> None:
        """Raise EngineError (ENOSPC) if the disk is almost full."""
        if self._min_free and self._database.free_bytes() < self._min_free:
            name, least, mount = printable(str(self._database.path)), show_size(self._min_free), mount_of(self._database.path)
            words = f"{mount} has less than {least} free for {name}; free some space there, or remove messages: sbusctl store purge STREAM"
            raise EngineError("ENOSPC", words)

    def is_short(self) -> bool:
        """Return whether the disk is, or soon will be, almost full; False if that is not known."""
        try:
            return self._database.free_bytes() < 2 * self._min_free
        except EngineError:
            return False


MAX_MESSAGE_BYTES = MAX_PACKET_BYTES - len(b"MSG \0")
"""Maximum size of a key and its payload together: the message can be published."""

MAX_ID_BYTES = 128
"""Maximum size of the id of a message."""

MAX_REASON_BYTES = 500
"""Maximum size of the reason of a gap or a failure; a longer one is cut."""

MAX_GAPS = 10_000
"""Gaps that a stream keeps. Above it, the oldest two become one."""

TRIM_ROWS = 10_000
"""Messages that one operation removes to make space. After a limit was lowered, sweeps remove the others."""

_CHUNK = 500

_TAIL_GAPS = 8
"""Gaps at the end of a stream with which a new one is merged, if pattern and reason are equal."""

_INSERT = (
    "INSERT INTO message (id, stream, time, key, payload, account, uid, gid, pid, origin, expires, gap, crc)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_INSERT_JOB = "INSERT INTO job (id, queue, state, at, line) VALUES (?, ?, ?, ?, ?)"
_OF_KEY = f"SELECT {REMOVABLE} FROM message WHERE stream = ? AND key = ? AND gap IS NULL ORDER BY id DESC LIMIT ?"
_OLDEST = f"SELECT {REMOVABLE} FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
_OLDEST_DEAD = (
    f"SELECT {REMOVABLE} FROM job JOIN message ON message.id = job.id"
    f" WHERE queue = ? AND state = {DEAD} AND at IS NOT NULL ORDER BY at LIMIT ?"
)
_TAIL = "SELECT id, key, payload, gap, uid FROM message WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT ?"
_FIRST_GAPS = f"SELECT {REMOVABLE}, payload, uid FROM message WHERE stream = ? AND gap IS NOT NULL ORDER BY id LIMIT 2"
_ACKNOWLEDGE = """
UPDATE message SET uid = ? WHERE id IN (
    SELECT message.id FROM stream CROSS JOIN message ON message.stream = stream.id WHERE gap IS NOT NULL AND uid IS NULL LIMIT ?
)
"""
_SET_GAP = "UPDATE message SET gap = ?, key = ?, payload = ?, time = ?, uid = ? WHERE id = ?"


_EXPECTED = 0
"""The uid of a gap that counts as acknowledged from the beginning."""


@dataclass(slots=True)
class _Batch:
    """Rows that are not yet in the tables."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    jobs: list[tuple[Any, ...]] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)
    """In a stream that keeps the last messages of each key, the keys of the rows."""
    lines: set[int] = field(default_factory=set)
    """In an ordered queue, the lines of the jobs."""


class Intake:
    """Stores messages and gaps."""

    def __init__(self, database: Database, figures: AllFigures, ids: PutIds, removal: Removal, lines: JobLines) -> None:
        self._run = database.execute
        self._run_many = database.executemany
        self._figures = figures
        self._ids = ids
        self._removal = removal
        self._lines = lines

    def put(self, stream: Stream, messages: Sequence[NewMessage], now: int, date: int) -> list[PutResult | EngineError]:
        """Store *messages* with a *date*. The result has an error for each message that is rejected."""
        results: list[PutResult | EngineError] = []
        batch = _Batch()
        self._figures.change(stream.figures)
        if stream.queue is not None:
            self._figures.change(stream.queue.figures)
        for message in messages:
            try:
                results.append(self._put(stream, message, batch, now=now, date=date))
            except EngineError as error:
                results.append(error)
        self._insert(batch)
        self.trim(stream)
        return results

    def add_gap(self, stream: Stream, pattern: bytes, count: int, reason: str, now: int, *, is_expected: bool = False) -> None:
        """Store that at most *count* messages that match *pattern* are missing here; 0: an unknown number. See Engine.add_gap."""
        figures = stream.figures
        self._figures.change(figures)
        text = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()
        for number, key, payload, gap, acknowledged_by in self._run(_TAIL, (*id_range(figures), _TAIL_GAPS)).fetchall():
            # What was acknowledged does not grow, or what has to be would not be reported.
            if gap is None or (acknowledged_by is not None) != is_expected:
                break
            if (key, payload) == (pattern, text):
                # An unknown number and a known one are together unknown.
                self._run(_SET_GAP, (gap + count if gap and count else 0, pattern, text, now, acknowledged_by, number))
                return
        if figures.gaps >= MAX_GAPS:
            self._merge_oldest_gaps(figures, now)
        figures.last_seq += 1
        number, uid = message_id(figures.id, figures.last_seq), _EXPECTED if is_expected else None
        self._run(_INSERT, (number, figures.id, now, pattern, text, 0, uid, 0, 0, None, None, count, None))
        figures.gaps += 1
        figures.bytes += size_of(pattern, text)
        self.trim(stream)

    def acknowledge_gaps(self, uid: int, max_rows: int) -> int:
        """Let *uid* acknowledge at most *max_rows* gaps, of all streams, and return how many: they are not reported as faults any more."""
        return self._run(_ACKNOWLEDGE, (uid, max_rows)).rowcount

    def trim(self, stream: Stream, max_rows: int = TRIM_ROWS) -> int:
        """Remove the oldest messages above the limits of *stream*, at most *max_rows*, and return how many rows. A queue loses no jobs."""
        figures, removed = stream.figures, 0
        while max_rows > 0 and self._excess(stream) and stream.queue is None:
            rows = [Removable(*row) for row in self._run(_OLDEST, (*id_range(figures), min(_CHUNK, max_rows))).fetchall()]
            rows = rows[: self._enough(stream, rows)]
            if not rows:
                break
            max_rows -= len(rows)
            count = self._removal.remove(figures, rows)
            figures.removed += count
            figures.removed_seq = max(figures.removed_seq, rows[-1].id & MAX_SEQ)
            removed += len(rows)
        return removed

    def _put(self, stream: Stream, message: NewMessage, batch: _Batch, *, now: int, date: int) -> PutResult:
        """Add *message* to *batch*. Raises EngineError if it is rejected."""
        figures, settings, key, sender = stream.figures, stream.settings, message.key, message.sender
        size = size_of(key, message.payload)
        _check(stream, message, size, now, date)
        account = self._figures.account_of(sender)
        put_id = message.id and own_id(message.id, sender, account)
        if put_id and (seq := self._ids.find(figures, account, put_id, now)) is not None:
            return PutResult(seq, is_duplicate=True)
        usage = self._figures.usage_of(figures, account)
        older: list[Removable] = []
        if settings.last:
            older = self._messages_of_key(stream, key, batch)
            self._check_keys(stream, usage.keys, account, older)
        replaced = older[settings.last - 1 :] if settings.last else older
        freed = sum([each.size for each in replaced if each.account == account]) if replaced else 0
        if usage.bytes - freed + size > settings.max_bytes_per_user:
            limit = show_size(settings.max_bytes_per_user)
            raise EngineError("EDQUOT", f"stream {stream.name}: the messages of user {account} would have more than {limit}")
        if stream.queue is not None:
            self._make_space(stream, stream.queue, size)
        if settings.last:
            self._removal.remove(figures, replaced, keys_are_counted=True)
            self._count_key(figures, account, older)
            batch.keys.add(key)
        figures.last_seq += 1
        figures.messages += 1
        figures.bytes += size
        usage.messages += 1
        usage.bytes += size
        number = message_id(figures.id, figures.last_seq)
        uid = account if account < 0 else sender.uid
        origin, expires = sender.origin or None, message.expires_ms or None
        crc = checksum((number, date, key, uid, sender.gid, sender.pid, origin, expires, account), message.payload)
        row = (number, figures.id, date, key, message.payload, account, None if uid == account else uid, sender.gid, sender.pid)
        batch.rows.append((*row, origin, expires, None, crc))
        if stream.queue is not None:
            batch.jobs.append(self._new_job(stream.queue, number, message, batch, now=now, date=date))
        if put_id:
            self._ids.add(figures, account, put_id, figures.last_seq, now)
        return PutResult(figures.last_seq)

    def _insert(self, batch: _Batch) -> None:
        """Insert the rows of *batch*, which is empty then."""
        self._run_many(_INSERT, batch.rows)
        self._run_many(_INSERT_JOB, batch.jobs)
        for each in (batch.rows, batch.jobs, batch.keys, batch.lines):
            each.clear()

    def _messages_of_key(self, stream: Stream, key: bytes, batch: _Batch) -> list[Removable]:
        """Return the messages of *key*, the newest first; of too many, only some."""
        if key in batch.keys:
            self._insert(batch)
        found = self._run(_OF_KEY, (stream.figures.id, key, stream.settings.last + _CHUNK))
        return [Removable(*row) for row in found.fetchall()]

    def _check_keys(self, stream: Stream, keys: int, account: int, older: list[Removable]) -> None:
        """Raise EngineError if a message of *account*, which has that many *keys*, would exceed the limits of keys."""
        settings = stream.settings
        if not older and stream.figures.keys >= settings.max_keys:
            raise EngineError("EDQUOT", f"stream {stream.name} has {settings.max_keys} keys, the maximum; forget some, or raise max_keys")
        if (not older or older[0].account != account) and keys >= settings.max_keys_per_user:
            words = f"user {account} has {settings.max_keys_per_user} keys, the maximum"
            raise EngineError("EDQUOT", f"stream {stream.name}: {words}; forget some, or raise max_keys_per_user")

    def _count_key(self, figures: StreamFigures, account: int, older: list[Removable]) -> None:
        """Count the key of a new message of *account* for it; *older* are the messages of the key before."""
        if not older:
            figures.keys += 1
        elif older[0].account != account:
            self._figures.usage_of(figures, older[0].account).keys -= 1
        else:
            return
        self._figures.usage_of(figures, account).keys += 1

    def _new_job(self, queue: Queue, number: int, message: NewMessage, batch: _Batch, *, now: int, date: int) -> tuple[Any, ...]:
        """Return the row of the job of *message*, and count it."""
        line = line_of(message.key) if queue.figures.is_ordered else None
        state, at = READY, None
        if message.at_ms > date:
            state, at = DATED, message.at_ms
        elif message.due_ms > now:
            state, at = DELAYED, message.due_ms
        elif line is not None:
            state = BLOCKED if line in batch.lines or self._lines.is_busy(queue.figures, line) else READY
            batch.lines.add(line)
        queue.figures.move(None, state)
        return number, queue.figures.id, state, at, line

    def _make_space(self, stream: Stream, queue: Queue, size: int) -> None:
        """Remove dead letters until *stream* has space for *size* bytes. Raises EngineError if it has too many jobs."""
        figures, settings = stream.figures, stream.settings
        rows = TRIM_ROWS
        while figures.bytes + size > settings.max_bytes or (settings.max_messages and figures.messages >= settings.max_messages):
            dead = [Removable(*row) for row in self._run(_OLDEST_DEAD, (queue.figures.id, 1)).fetchall()]
            rows -= 1
            if not dead or rows < 0:
                limit = f"{show_size(settings.max_bytes)}" if figures.bytes + size > settings.max_bytes else f"{settings.max_messages} jobs"
                raise EngineError("ENOSPC", f"queue {queue.name} is full: its stream has {limit}; start more workers, or raise the limit")
            figures.removed += self._removal.remove(figures, dead)
            queue.figures.dropped_dead += 1

    def _excess(self, stream: Stream) -> bool:
        """Return whether *stream* has more than its limits."""
        figures, settings = stream.figures, stream.settings
        return figures.bytes > settings.max_bytes or 0 < settings.max_messages < figures.messages

    def _enough(self, stream: Stream, rows: Sequence[Removable]) -> int:
        """Return how many of *rows* must be removed until *stream* is within its limits."""
        figures, settings = stream.figures, stream.settings
        messages, size = figures.messages, figures.bytes
        for position, row in enumerate(rows):
            if size <= settings.max_bytes and (not settings.max_messages or messages <= settings.max_messages):
                return position
            size -= row.size
            messages -= row.gap is None
        return len(rows)

    def _merge_oldest_gaps(self, figures: StreamFigures, now: int) -> None:
        """Make one gap of the oldest two."""
        rows = self._run(_FIRST_GAPS, (figures.id,)).fetchall()
        if len(rows) < 2:
            return
        (*first, first_reason, first_uid), (*second, second_reason, second_uid) = rows
        gone, left = Removable(*first), Removable(*second)
        pattern = left.key if left.key == gone.key else b""
        reason = second_reason if second_reason == first_reason else b"several reasons"
        self._removal.remove(figures, [gone])
        count = (gone.gap or 0) + (left.gap or 0) if gone.gap and left.gap else 0
        self._run(_SET_GAP, (count, pattern, reason, now, None if first_uid is None else second_uid, left.id))
        figures.bytes += size_of(pattern, reason) - left.size


def _check(stream: Stream, message: NewMessage, size: int, now: int, date: int) -> None:
    """Raise EngineError if *stream* cannot store *message*, which counts *size* bytes, for a reason that is in the message."""
    key, settings = message.key, stream.settings
    if len(key) > MAX_KEY_BYTES or len(key) + len(message.payload) > MAX_MESSAGE_BYTES:
        words = f"at most {MAX_KEY_BYTES} bytes of key, and {MAX_MESSAGE_BYTES} of key and payload, are allowed"
        raise EngineError("EMSGSIZE", f"message too long: {len(key)} bytes of key, {len(message.payload)} of payload; {words}")
    if not stream.matcher.matches(key) or b"\0" in key:
        raise EngineError("EINVAL", f"stream {stream.name} does not store the key {key[:100]!r}; see its keys in store.toml(5)")
    if len(message.id) > MAX_ID_BYTES:
        raise EngineError("EINVAL", f"id too long: {len(message.id)} bytes, at most {MAX_ID_BYTES} are allowed")
    delay = max(message.due_ms - now, message.at_ms - date)
    if delay > 0:
        if stream.queue is None:
            raise EngineError("EINVAL", f"stream {stream.name} has no queue, so messages cannot be delayed; put without delay")
        most = min(MAX_DELAY_SECONDS, settings.retain or MAX_DELAY_SECONDS)
        if delay > most * 1000:
            raise EngineError("EINVAL", f"delay of {delay // 1000} s is too long: stream {stream.name} allows {most:.0f} s")
    if message.expires_ms and message.expires_ms <= now:
        raise EngineError("EINVAL", "the message expires in the past; use a later time")
    if size > settings.max_bytes or size > settings.max_bytes_per_user:
        raise EngineError("EMSGSIZE", f"message with {size} bytes is longer than stream {stream.name} may be")
