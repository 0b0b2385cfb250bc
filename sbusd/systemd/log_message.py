"""What a log record says: its message, with an id by which the journal and its catalog know it. Spec: systemd.journal-fields(7)."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Priority(enum.IntEnum):
    """How urgent a record is, syslog(3)."""

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
    """One thing that can be recorded: ``id`` is 128 bits in hex, ``name`` is for readers of the code and of statistics."""

    id: str
    priority: Priority
    name: str
    words: str
