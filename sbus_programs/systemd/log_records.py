"""The log of a program: messages, records with limited rates, their form in the journal and on standard error, and destinations.

Each program has its own list of messages: the ``log_messages.py`` of its package. Writing to either destination may block or fail.
:class:`ServiceLog` writes each record at once. The bus must never wait; it uses :mod:`sbusd.broker.log`, which writes the same records from
a thread. Spec: systemd.journal-fields(7), sbus-recorder(8), sbus-relay(8).
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sbus.protocol.printable import printable

JOURNAL_SOCKET = "/run/systemd/journal/socket"
"""The socket on which journald receives records in its native protocol, sd_journal_send(3)."""

_NULL_DEVICE = os.makedev(1, 3)


class Priority(enum.IntEnum):
    """The urgency of a record, syslog(3)."""

    EMERG = 0
    ALERT = 1
    CRIT = 2
    ERR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6
    DEBUG = 7


@dataclass(frozen=True, slots=True)
class LogMessage:
    """One kind of record. The random ``id``, 128 bits in hex, and the ``name`` never change; the ``template`` may.

    ``{names}`` in the template are facts, which are also fields of the record, ``SBUS_<NAME>``.
    """

    id: str
    priority: Priority
    name: str
    template: str

    def text(self, facts: Mapping[str, Fact]) -> str:
        """Return the template with *facts* filled in, on one line."""
        return self.template.format_map(
            _Shown({name: printable(fact) if isinstance(fact, str | bytes) else str(fact) for name, fact in facts.items()})
        )


Fact = str | bytes | int

MAX_FACT_BYTES = 1_024
"""Maximum size of a key or other fact in a record. Longer ones, which any client can send, are cut: journald takes no larger datagram."""


def bounded(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Return *facts* with each text and key cut to :data:`MAX_FACT_BYTES`; ``…`` shows that in a text."""
    return {name: _cut(fact) for name, fact in facts.items()}


def _cut(fact: Fact) -> Fact:
    """Return *fact*, or the beginning of a long one."""
    if isinstance(fact, str) and len(fact) > MAX_FACT_BYTES:
        return f"{fact[: MAX_FACT_BYTES - 1]}…"
    return fact if isinstance(fact, int) else fact[:MAX_FACT_BYTES]


class _Shown(dict[str, str]):
    """Facts by name. A missing fact does not prevent the record."""

    def __missing__(self, name: str) -> str:
        return f"({name} unknown)"


@dataclass(frozen=True, slots=True)
class Record:
    """One record: a message, and the client that it is about, if any. The caller limits the size of each part."""

    message: LogMessage
    uid: int | None = None
    pid: int | None = None
    connection: int | None = None
    key: bytes | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    trace: str = ""
    """Traceback of an internal error. It goes to the journal only."""
    priority: int | None = None
    """Replaces the priority of the message."""
    unit: str | None = None
    """The unit of the client's process, if it is known and in one."""

    @property
    def text(self) -> str:
        """The text of the record, on one line."""
        return self.message.text(self.facts)


def journal_datagram(record: Record, identifier: str) -> bytes:
    """Return *record* in the native protocol of the journal. A value that contains a newline is sent with its length."""
    return b"".join(_journal_field(name.encode(), value) for name, value in journal_fields(record, identifier).items())


def journal_fields(record: Record, identifier: str) -> dict[str, bytes]:
    """Return the journal fields of *record*; *identifier* is the program."""
    facts: dict[str, Fact] = {f"SBUS_{name.upper()}": fact for name, fact in record.facts.items()}
    fields: dict[str, Fact | None] = {
        "MESSAGE": record.text,
        "MESSAGE_ID": record.message.id,
        "PRIORITY": int(record.message.priority if record.priority is None else record.priority),
        "SYSLOG_IDENTIFIER": identifier,
        "SBUS_EVENT": record.message.name,
        "SBUS_PEER_UID": record.uid,
        "SBUS_PEER_PID": record.pid,
        "SBUS_PEER_UNIT": record.unit or None,
        "SBUS_CONNECTION": record.connection,
        "SBUS_KEY": record.key,
        "SBUS_TRACEBACK": record.trace or None,
    }
    # A fact never replaces one of these fields.
    known = facts | {name: value for name, value in fields.items() if value is not None}
    return {name: _value(value) for name, value in known.items()}


def standard_error_line(record: Record, identifier: str) -> str:
    """Return *record* as ``sbusd: text [uid=1000 pid=3 connection=7 key=a/b]``, without the traceback."""
    client = {"uid": record.uid, "pid": record.pid, "connection": record.connection}
    known = [f"{name}={value}" for name, value in client.items() if value is not None]
    if record.key is not None:
        known.append(f"key={printable(record.key)}")
    return f"{identifier}: {record.text}" + (f" [{' '.join(known)}]" if known else "")


class LogSink(Protocol):
    """A destination of records."""

    def write(self, record: Record) -> None:
        """Write one record. May block. Raises OSError on failure."""

    def close(self) -> None:
        """Close the destination."""


class JournalSink:
    """The journal. Spec: systemd.journal-fields(7), "native protocol".

    Does not use systemd-python: its ``sendv`` holds the interpreter's lock while it blocks, so a journald that hangs would stop
    the whole program. Records are small enough for a datagram, so no memfd is needed.
    """

    def __init__(self, identifier: str, address: str = JOURNAL_SOCKET) -> None:
        """Write the records of the program *identifier* to the socket *address*."""
        self._identifier = identifier
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def write(self, record: Record) -> None:
        """Send *record*. Blocks while the queue of journald is full. Raises OSError if journald does not run."""
        # The socket is not connected: a restarted journald has another socket at the same address.
        self._socket.sendto(journal_datagram(record, self._identifier), self._address)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class StandardErrorSink:
    """Standard error: one line for each record."""

    def __init__(self, identifier: str) -> None:
        """Begin each line with *identifier*."""
        self._identifier = identifier

    def write(self, record: Record) -> None:
        """Write the line. Blocks while a pipe is full. Raises OSError if standard error is closed or the null device."""
        if _is_null_stream():
            raise OSError(errno.ENODEV, "standard error is the null device")
        line = f"{standard_error_line(record, self._identifier)}\n".encode()
        while line:
            line = line[os.write(2, line) :]

    def close(self) -> None:
        """Leave standard error open: it belongs to the process."""


def choose_sink(identifier: str, *, background: bool = False, environment: Mapping[str, str] = os.environ) -> LogSink:
    """Return the destination for the records of the program *identifier*.

    It is the journal if journald runs and either standard error leads to the journal, as under systemd, or the program is in
    the *background*; and for a service of systemd whose standard error is the null device, because journald did not run when the
    service started, and may run at the next record. Otherwise it is standard error. Spec: sbusd(8); $JOURNAL_STREAM and
    $SYSTEMD_EXEC_PID in systemd.exec(5).
    """
    if os.path.exists(JOURNAL_SOCKET) and (background or _is_journal_stream(environment)):
        return JournalSink(identifier, JOURNAL_SOCKET)
    if environment.get("SYSTEMD_EXEC_PID") == str(os.getpid()) and _is_null_stream():
        return JournalSink(identifier, JOURNAL_SOCKET)
    return StandardErrorSink(identifier)


class Log(Protocol):
    """A destination for log messages."""

    def record(self, message: LogMessage, /, **facts: Fact) -> None:
        """Log *message* with its *facts*. Never raises."""


class ServiceLog:
    """The log of one program."""

    def __init__(self, identifier: str, sink: LogSink | None = None) -> None:
        """Write to *sink*, by default the journal or standard error, under the program's name *identifier*."""
        self._sink = sink or choose_sink(identifier)

    def record(self, message: LogMessage, /, **facts: Fact) -> None:
        """Log *message* with its *facts*. Never raises: a record that cannot be written must not end the program."""
        with contextlib.suppress(OSError):
            self._sink.write(Record(message, facts=bounded(facts)))


def _journal_field(name: bytes, value: bytes) -> bytes:
    """Return one field in the native protocol of the journal."""
    if b"\n" in value:
        return name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name + b"=" + value + b"\n"


def _value(value: Fact) -> bytes:
    """Return the value of a field as bytes."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "backslashreplace")


def _is_null_stream() -> bool:
    """Return whether standard error is the null device. Raises OSError if it is closed."""
    return os.fstat(2).st_rdev == _NULL_DEVICE


def _is_journal_stream(environment: Mapping[str, str]) -> bool:
    """Return whether $JOURNAL_STREAM, ``device:inode``, names standard error."""
    try:
        error = os.fstat(2)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{error.st_dev}:{error.st_ino}"


QUIET_SECONDS = 10.0
"""Seconds for which the same message with the same cause is only counted: a flood becomes one record per interval."""

MAX_CAUSES = 1_000
"""Maximum number of remembered causes. Further ones, such as the addresses of one attacker, share one."""


class LimitedLog(ServiceLog):
    """The log of one program, with a rate limit for messages that other hosts or users can cause."""

    def __init__(self, identifier: str, sink: LogSink | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to *sink*, by default the journal or standard error; *clock* counts seconds, for tests."""
        super().__init__(identifier, sink)
        self._clock = clock
        self._quiet_until: dict[tuple[str, str], float] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def record_limited(self, message: LogMessage, cause: str, /, **facts: Fact) -> None:
        """Log *message* with its ``count`` since the last record, unless the same *cause* was logged less than QUIET_SECONDS ago."""
        key = (message.name, cause)
        now = self._clock()
        if key not in self._quiet_until and len(self._quiet_until) >= MAX_CAUSES:
            self._forget(now)
            if len(self._quiet_until) >= MAX_CAUSES:
                key = (message.name, "")
        self._counts[key] = self._counts.get(key, 0) + 1
        if now < self._quiet_until.get(key, now):
            return
        self._quiet_until[key] = now + QUIET_SECONDS
        self.record(message, **facts, count=self._counts.pop(key))

    def _forget(self, now: float) -> None:
        """Forget causes that can be logged again and have nothing to count."""
        for key in [key for key, until in self._quiet_until.items() if until <= now and key not in self._counts]:
            del self._quiet_until[key]
