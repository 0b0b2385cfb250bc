"""The destinations of log records: the journal, and standard error. Writing to either may block or fail."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from typing import Protocol

from sbusd.systemd.log_record import Record, journal_datagram, standard_error_line

JOURNAL_SOCKET = "/run/systemd/journal/socket"
"""The socket on which journald receives records in its native protocol, sd_journal_send(3)."""

_NULL_DEVICE = os.makedev(1, 3)


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
        if os.fstat(2).st_rdev == _NULL_DEVICE:
            raise OSError(errno.ENODEV, "standard error is the null device")
        line = f"{standard_error_line(record, self._identifier)}\n".encode()
        while line:
            line = line[os.write(2, line) :]

    def close(self) -> None:
        """Leave standard error open: it belongs to the process."""


def choose_sink(identifier: str, *, background: bool = False, environment: Mapping[str, str] = os.environ) -> LogSink:
    """Return the destination for the records of the program *identifier*.

    It is the journal if journald runs and either standard error leads to the journal, as under systemd, or the program is in
    the *background*. Otherwise it is standard error. Spec: sbusd(8); $JOURNAL_STREAM in systemd.exec(5).
    """
    if os.path.exists(JOURNAL_SOCKET) and (background or _is_journal_stream(environment)):
        return JournalSink(identifier)
    return StandardErrorSink(identifier)


def _is_journal_stream(environment: Mapping[str, str]) -> bool:
    """Return whether $JOURNAL_STREAM, ``device:inode``, names standard error."""
    try:
        error = os.fstat(2)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM", "") == f"{error.st_dev}:{error.st_ino}"
