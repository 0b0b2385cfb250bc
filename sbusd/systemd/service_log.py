"""The log of a program that may wait for the journal: it writes each record at once. Spec: sbus-recorder(8), sbus-relay(8).

The bus must never wait; it uses :mod:`sbusd.broker.log`, which writes the same records from a thread.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from sbusd.systemd.log_record import Fact, LogMessage, Record, bounded
from sbusd.systemd.log_sink import LogSink, choose_sink


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
