"""Where records go: to the journal, or to standard error. Both may block or fail; only :mod:`sbusd.broker.log` calls them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sbusd.protocol.printable import printable
from sbusd.systemd.journal_stream import is_journal_stream
from sbusd.systemd.log_message import LogMessage

JOURNAL_SOCKET = "/run/systemd/journal/socket"
"""Where journald takes native records, sd_journal_send(3)."""

IDENTIFIER = "sbusd"

_NULL_DEVICE = os.makedev(1, 3)

Fact = str | bytes | int


@dataclass(frozen=True, slots=True)
class Record:
    """One record on its way: what happened, and to whom. Every part is bounded in size by whoever makes it."""

    message: LogMessage
    uid: int | None = None
    pid: int | None = None
    connection: int | None = None
    key: bytes | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    trace: str = ""
    """Traceback of internal error in: for the journal, never for a terminal or a peer."""
    priority: int | None = None
    """Another priority than the message's."""

    @property
    def text(self) -> str:
        """The words with the facts in them, on one line."""
        shown = _Facts({name: printable(fact) if isinstance(fact, str | bytes) else str(fact) for name, fact in self.facts.items()})
        return self.message.words.format_map(shown)


class _Facts(dict[str, str]):
    """Facts by name; one that is missing must not cost the record."""

    def __missing__(self, name: str) -> str:
        return f"({name} unknown)"


class LogSink(Protocol):
    """A place for records."""

    def write(self, record: Record) -> None:
        """Write one record. May block. Raises OSError if it cannot."""

    def close(self) -> None:
        """Let go of what was opened; nothing is written after."""


class JournalSink:
    """The journal, in its native form, with a field for each fact. Spec: systemd.journal-fields(7), and its "native protocol".

    Not by systemd-python: its ``sendv`` keeps the interpreter's lock while it waits, so a journald that hangs would stop the
    bus. A socket of Python's lets go of it. Records are small enough for a datagram, so no memfd is needed either.
    """

    def __init__(self, address: str = JOURNAL_SOCKET) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def write(self, record: Record) -> None:
        """Send the record. Blocks while journald does not read. Raises OSError if it is not there."""
        # Not connected: journald may be started anew, and then another socket has that name.
        self._socket.sendto(journal_datagram(record), self._address)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class StandardErrorSink:
    """Standard error: one line for each record."""

    def write(self, record: Record) -> None:
        """Write the line. Blocks while a full pipe is not read. Raises OSError if nobody can read it."""
        if os.fstat(2).st_rdev == _NULL_DEVICE:
            raise OSError(errno.ENODEV, "standard error is the null device")
        line = f"{standard_error_line(record)}\n".encode()
        while line:
            line = line[os.write(2, line) :]

    def close(self) -> None:
        """Leave standard error open: it is the process's."""


def journal_datagram(record: Record) -> bytes:
    """Return the record as journald takes it. A value may have any bytes: one with a newline is told with its length."""
    return b"".join(_journal_field(name.encode(), value) for name, value in journal_fields(record).items())


def journal_fields(record: Record) -> dict[str, bytes]:
    """Return the fields of the record in the journal."""
    fields: dict[str, Fact | None] = {f"SBUS_{name.upper()}": fact for name, fact in record.facts.items()}
    # Behind the facts: whatever those are called, they replace none of these.
    fields |= {
        "MESSAGE": record.text,
        "MESSAGE_ID": record.message.id,
        "PRIORITY": int(record.message.priority if record.priority is None else record.priority),
        "SYSLOG_IDENTIFIER": IDENTIFIER,
        "SBUS_EVENT": record.message.name,
        "SBUS_PEER_UID": record.uid,
        "SBUS_PEER_PID": record.pid,
        "SBUS_CONNECTION": record.connection,
        "SBUS_KEY": record.key,
        "SBUS_TRACEBACK": record.trace or None,
    }
    return {name: _value(value) for name, value in fields.items() if value is not None}


def _journal_field(name: bytes, value: bytes) -> bytes:
    """Return one field in the journal's native form."""
    if b"\n" in value:
        return name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name + b"=" + value + b"\n"


def standard_error_line(record: Record) -> str:
    """Return the record as ``sbusd: words [uid=1000 pid=3 connection=7 key=a/b]``, without the traceback."""
    who = {"uid": record.uid, "pid": record.pid, "connection": record.connection}
    known = [f"{name}={value}" for name, value in who.items() if value is not None]
    if record.key is not None:
        known.append(f"key={printable(record.key)}")
    return f"{IDENTIFIER}: {record.text}" + (f" [{' '.join(known)}]" if known else "")


def choose_sink(*, background: bool, environment: Mapping[str, str] = os.environ) -> LogSink:
    """Return the journal if there is one, and either standard error leads there, as under systemd, or the bus is in the background.

    Otherwise a person started it: then they read on standard error. Spec: sbusd(8); $JOURNAL_STREAM in systemd.exec(5).
    """
    if os.path.exists(JOURNAL_SOCKET) and (background or is_journal_stream(environment)):
        return JournalSink()
    return StandardErrorSink()


def _value(value: Fact) -> bytes:
    """Return a field's value as bytes."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "backslashreplace")
