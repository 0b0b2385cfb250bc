"""Entries of the journal: key, payload, which are omitted, and the position that is saved. Spec: sbus-feed(8); systemd.journal-fields(7).

Only fields that begin with ``_`` are set by journald; the sender chooses the others. So only those decide the key, and no user can
publish under the name of another user's unit. The service manager (process 1) and root may write entries about other units.

The feed omits entries that the bus writes because of the feed's messages. Publishing them would cause an endless loop. Example: a slow
subscriber loses a message, the bus logs that, the feed publishes the log entry, the subscriber loses it, and so on. The bus itself
notifies subscribers of lost messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_services.feeds.netlink.entries import escape

_FORM = re.compile(r"s=([0-9a-f]{32});i=([0-9a-f]{1,16});b=([0-9a-f]{32});m=([0-9a-f]{1,16});t=([0-9a-f]{1,16});x=([0-9a-f]{1,16})")

_LONGEST = 1024
"""Bytes read from a cursor file: several times the longest cursor."""


class BadCursorError(SbusError, ValueError):
    """An invalid journal cursor."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of an entry. Times are microseconds; ``number`` counts the entries of one ``source`` without gaps."""

    text: str
    source: str
    number: int
    boot: str
    monotonic: int
    realtime: int
    checksum: int
    """Checksum of the entry's contents."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse *text*. Raises BadCursorError."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise BadCursorError(f"invalid journal cursor: {printable(text, 60)}")
        source, number, boot, monotonic, realtime, checksum = match.groups()
        return cls(text, source, int(number, 16), boot, int(monotonic, 16), int(realtime, 16), int(checksum, 16))

    def is_same_entry(self, other: Cursor) -> bool:
        """Return whether both are the same entry, which may be in two files: journald copies entries of the early boot."""
        if self.source == other.source:
            return self.number == other.number
        return (self.boot, self.monotonic, self.realtime, self.checksum) == (other.boot, other.monotonic, other.realtime, other.checksum)

    def is_behind(self, other: Cursor) -> bool:
        """Return whether it certainly comes after *other*. Times do not decide, because clocks can be set."""
        return self.source == other.source and self.number > other.number

    def missing_since(self, earlier: Cursor) -> int | None:
        """Return how many entries are missing between *earlier* and this one, None if unknown."""
        return max(0, self.number - earlier.number - 1) if self.source == earlier.source else None


class CursorFile:
    """A file with one cursor. Without a path nothing is saved."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self) -> Cursor | None:
        """Return the saved cursor, None if there is none.

        Raises:
            BadCursorError: the file is malformed.
            OSError: it cannot be read.
        """
        if self.path is None:
            return None
        try:
            with self.path.open("rb") as file:
                content = file.read(_LONGEST)
        except FileNotFoundError:
            return None
        return Cursor.parse(content.decode("ascii", "replace").removesuffix("\n"))

    def save(self, cursor: Cursor) -> None:
        """Replace the saved cursor atomically: after a power failure the file has the old or the new one. Raises OSError.

        Signals that end the program are delayed until this is done.
        """
        if self.path is None:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            self._replace(self.path, f"{cursor.text}\n".encode("ascii"))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        """Replace the file at *path*. Raises OSError."""
        fresh = path.with_name(f".{path.name}.new")
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise


PREFIX = "journal/"
"""The first segment of all keys of the feed."""

LOST = f"{PREFIX}-/lost"
"""The key of loss notices. No entry has it, because ``lost`` is not a priority."""

PRIORITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Names of the priorities 0 to 7, as in syslog(3) and journalctl(1)."""

VALUE_BYTES = 8 << 10
"""Longest value that is published whole: twice the limit of journalctl(1) for JSON."""

MESSAGE_BYTES = 48 << 10
"""The same for MESSAGE: the longest line that journald accepts from a service, LineMax= in journald.conf(5)."""

PAYLOAD_BYTES = 160 << 10
"""Longest payload: with its key and the kernel's overhead it must fit into a socket of Linux's default size, 208 KiB."""

_UNIT_BYTES = 255
"""Longest name of a unit, systemd.unit(5)."""

Fields = Mapping[str, bytes | list[bytes]]

PACKETS_LOST = b"42f13a4bdc354a9fb0e263134c20ef30"
QUOTA_REFUSED = b"a4f27f03c99c47a6824bdd67ab0d11b6"
SUPPRESSED = b"f8c730d37c22450d91c169fc5dfd85c1"

_CAUSED = frozenset({PACKETS_LOST, QUOTA_REFUSED, SUPPRESSED})
"""MESSAGE_ID of log entries about recipients that any message can cause; sbusd(8) lists them."""

_BUS_UNIT = re.compile(rb"sbus(@.*)?\.service", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One entry: its position and its fields. A field that occurs several times is a list."""

    cursor: Cursor
    fields: Fields

    def first(self, name: str) -> bytes | None:
        """Return the first value of the field *name*."""
        value = self.fields.get(name)
        return (value[0] if value else None) if isinstance(value, list) else value

    @property
    def key(self) -> str:
        """``journal/<unit>/<priority>``."""
        priority = self.first("PRIORITY")
        is_known = priority is not None and len(priority) == 1 and priority in b"01234567"
        return f"{PREFIX}{self._unit}/{PRIORITIES[int(priority)] if priority and is_known else '-'}"

    @property
    def _unit(self) -> str:
        """The unit's segment: its name; ``kernel`` or ``-`` if there is none. No unit has these names."""
        unit = self._subject or self.first("_SYSTEMD_UNIT")
        if unit and len(unit) <= _UNIT_BYTES:
            return escape(unit)
        return "kernel" if self.first("_TRANSPORT") == b"kernel" else "-"

    @property
    def _subject(self) -> bytes | None:
        """The unit that the entry is about if its sender may write about other units, as in ``journalctl --unit``."""
        if self.first("_PID") == b"1":
            return self.first("UNIT")
        if self.first("_UID") == b"0":
            return self.first("COREDUMP_UNIT") or self.first("OBJECT_SYSTEMD_UNIT")
        return None

    def payload(self) -> tuple[bytes, bool]:
        """Return all fields as a JSON object, and whether it is complete: long values are cut, and excess fields omitted."""
        cursor = self.cursor
        head = {"__CURSOR": cursor.text, "__REALTIME_TIMESTAMP": str(cursor.realtime), "__MONOTONIC_TIMESTAMP": str(cursor.monotonic)}
        room = PAYLOAD_BYTES - _NOTES_BYTES
        parts = [f"{_json(name)}:{_json(value)}" for name, value in head.items()]
        cut: list[str] = []
        omitted = 0
        for name in sorted(self.fields, key=_rank):
            text, is_whole = _value(name, self.fields[name])
            part = f"{_json(name)}:{text}"
            needed = len(part) + 1 + (0 if is_whole else len(name) + 3)
            if needed > room:
                omitted += 1
                continue
            room -= needed
            parts.append(part)
            if not is_whole:
                cut.append(name)
        parts.extend(_notes(cut, omitted))
        return f"{{{','.join(parts)}}}".encode("ascii"), not cut and not omitted


_NOTES_BYTES = 1 << 10
"""Room for the first members and for the notes about incomplete fields, without their names."""

_FIRST = ("MESSAGE", "PRIORITY", "SYSLOG_IDENTIFIER", "MESSAGE_ID")


def _rank(name: str) -> tuple[int, str]:
    """Return the sort key of a field; less important fields come last, because excess fields are omitted."""
    if name in _FIRST:
        return 0, name
    return (1 if name.startswith("_") else 2), name


def _notes(cut: list[str], omitted: int) -> Iterator[str]:
    """Yield the members that list what is incomplete; journald accepts no fields with such names."""
    if cut:
        yield f'"__CUT":{_json(cut)}'
    if omitted:
        yield f'"__OMITTED":{omitted}'


def _value(name: str, value: bytes | list[bytes]) -> tuple[str, bool]:
    """Return a value in JSON, and whether it is complete."""
    most = MESSAGE_BYTES if name == "MESSAGE" else VALUE_BYTES
    if not isinstance(value, list):
        return _text(value, most)
    texts: list[str] = []
    is_whole = True
    for each in value:
        text, has_all = _text(each, most)
        # All values of a field share the limit of one field, or a repeated field could exhaust the room.
        if texts and sum(map(len, texts)) + len(text) > 2 * most:
            return f"[{','.join(texts)}]", False
        texts.append(text)
        is_whole = is_whole and has_all
    return f"[{','.join(texts)}]", is_whole


def _text(value: bytes, most: int) -> tuple[str, bool]:
    """Return *value* in JSON, and whether it is complete. It is cut to *most* bytes, or fewer if it takes over twice as many characters."""
    if len(value) > most:
        return _cut(value, most), False
    text = _encoded(value)
    return (text, True) if len(text) <= 2 * most else (_cut(value, most), False)


def _cut(value: bytes, most: int) -> str:
    """Return the first bytes of *value* in JSON, in at most twice *most* characters; one byte can take six."""
    text = _encoded(_without_half_a_character(value[:most]))
    return text if len(text) <= 2 * most else _encoded(_without_half_a_character(value[: most // 3]))


def _without_half_a_character(value: bytes) -> bytes:
    """Return *value* without an incomplete character at its end, if it is text otherwise."""
    try:
        value.decode()
    except UnicodeDecodeError as wrong:
        if wrong.reason == "unexpected end of data":
            return value[: wrong.start]
    return value


def _encoded(value: bytes) -> str:
    """Return *value* in JSON like ``journalctl --output=json``: text as a string, other bytes as numbers."""
    try:
        return _json(value.decode())
    except UnicodeDecodeError:
        return f"[{','.join(map(str, value))}]"


def _json(value: object) -> str:
    """Return *value* as JSON in ASCII."""
    return json.dumps(value, separators=(",", ":"))


def is_echo(entry: JournalEntry, pid: int, uid: int) -> bool:
    """Return whether a bus wrote *entry* about this feed, the process *pid* of *uid*, or because of some message.

    Only trusted fields decide who wrote the entry; otherwise any user could write entries that the feed omits.
    """
    if not _is_of_a_bus(entry, uid):
        return False
    return entry.first("MESSAGE_ID") in _CAUSED or entry.first("SBUS_PEER_PID") == b"%d" % pid


def _is_of_a_bus(entry: JournalEntry, uid: int) -> bool:
    """Return whether the writer is a bus: the system's, or the user's own under the user's own manager."""
    if _BUS_UNIT.fullmatch(entry.first("_SYSTEMD_UNIT") or b""):
        return True
    return entry.first("_UID") == b"%d" % uid and bool(_BUS_UNIT.fullmatch(entry.first("_SYSTEMD_USER_UNIT") or b""))
