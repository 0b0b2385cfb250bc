"""What a service tells whoever runs it: a record of the journal with an id, or a line on standard error.

Spec: sbus-recorder(8), sbus-relay(8).
Each service has a list of its own: ``sbusd/recorder/log_messages.py``, ``sbusd/relay/log_messages.py``.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from systemd import journal

from sbusd.protocol.printable import printable
from sbusd.systemd.journal_stream import is_journal_stream


class Priority(enum.IntEnum):
    """How urgent a record is, syslog(3)."""

    ERR = 3
    WARNING = 4
    NOTICE = 5
    INFO = 6


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that can be told. The id was made once, at random, and never changes; the words may. ``{names}`` in them are facts."""

    id: str
    priority: Priority
    name: str
    words: str

    def text(self, facts: Mapping[str, str | int]) -> str:
        """Return the words with the *facts* in them, on one line."""
        return self.words.format_map({name: printable(fact) if isinstance(fact, str) else fact for name, fact in facts.items()})


Send = Callable[..., object]


class EventJournal:
    """The journal where standard error leads there, as under systemd; else standard error. Spec: $JOURNAL_STREAM in systemd.exec(5)."""

    identifier: ClassVar[str]
    """The service's name in front of each line, and as SYSLOG_IDENTIFIER."""

    def __init__(self, environment: Mapping[str, str] = os.environ, send: Send = journal.send) -> None:
        """*send* is systemd's, sd_journal_send(3)."""
        self._send = send if is_journal_stream(environment) else None

    def tell(self, event: Event, **facts: str | int) -> None:
        """Tell that *event* happened, with its *facts*. Never raises: what cannot be told must not end the service."""
        text = event.text(facts)
        with contextlib.suppress(OSError, ValueError):
            if self._send is None:
                print(f"{self.identifier}: {text}", file=sys.stderr, flush=True)
            else:
                fields = {f"SBUS_{name.upper()}": str(fact) for name, fact in facts.items()}
                priority = str(int(event.priority))
                self._send(text, MESSAGE_ID=event.id, PRIORITY=priority, SYSLOG_IDENTIFIER=self.identifier, SBUS_EVENT=event.name, **fields)
