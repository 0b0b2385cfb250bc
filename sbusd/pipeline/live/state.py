"""The state of the job in one file, which is replaced atomically: counters, alerts, and the number of the last batch in them.

A batch that Spark repeats after a kill is in the file, and is not counted twice. A decided alert is in the file until it is published.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sbusd.archive.files import publish_file
from sbusd.config.live import LiveSettings
from sbusd.pipeline.errors import PipelineError
from sbusd.pipeline.live.alerts import Raised, Usual, decide
from sbusd.pipeline.live.minutes import KEPT_MINUTES, Group, Minute, Minutes

STATE = "state.json"
VERSION = 1


class Decided(NamedTuple):
    """A message that is to be published, with its number; numbers increase by one."""

    number: int
    key: str
    payload: str


class Losses(NamedTuple):
    """What the rows of one batch say about missing rows: a number, interruptions of unknown size, and the minutes concerned."""

    lost: int = 0
    interruptions: int = 0
    first: int | None = None
    last: int | None = None


@dataclass(slots=True)
class LiveState:
    """The state of one job."""

    query: str = ""
    """The id of the streaming query, from its checkpoint. Numbers of batches of another query mean nothing."""
    batch: int = -1
    minutes: Minutes = field(default_factory=Minutes)
    closed: int = 0
    """The last minute that was compared with the thresholds."""
    raised: Raised = field(default_factory=dict)
    pending: list[Decided] = field(default_factory=list)
    decided: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("messages", "lost", "interruptions", "late", "repeated_batches", "suppressed", "starts"), 0)
    )
    """Totals since the state was created; for their meaning see sbus-live(8)."""

    def begin(self, query: str, now: float) -> None:
        """Begin a run: the minutes since the last closed one are incomplete, because messages between two runs are missing."""
        if query != self.query:
            self.query, self.batch = query, -1
        minute = int(now // 60)
        self.closed = min(self.closed, minute - 1)
        self.minutes.forget(minute)
        self.minutes.mark_incomplete(self.closed + 1 if self.closed else minute, minute)
        self.counts["starts"] += 1

    def fold(self, batch: int, groups: Iterable[Group], losses: Losses) -> bool:
        """Add the sums of a batch, unless they were added before; return whether they were added."""
        if batch <= self.batch:
            self.counts["repeated_batches"] += 1
            return False
        self.batch = batch
        known = list(groups)
        self.minutes.fold(known)
        self.counts["messages"] += sum(each.counts[0] for each in known)
        self.counts["late"] += sum(each.counts[0] for each in known if each.minute <= self.closed)
        self.counts["lost"] += losses.lost
        self.counts["interruptions"] += losses.interruptions
        if losses.first is not None and losses.last is not None:
            self.minutes.mark_incomplete(losses.first, losses.last)
        return True

    def close(self, settings: LiveSettings, usual: Mapping[str, Usual], now: float, host: str) -> int:
        """Compare the minutes that have ended with the thresholds; return the number of closed minutes."""
        current = int(now // 60)
        # The clock may have been set back.
        self.closed = min(self.closed, current)
        last = int((now - settings.delay) // 60) - 1
        begun = min(self.minutes.by_number, default=current)
        first = max(self.closed + 1, last - KEPT_MINUTES + 1, begun)
        for number in range(first, last + 1):
            minute = self.minutes.by_number.setdefault(number, Minute())
            changes, suppressed = decide(settings, minute, number, usual, self.raised)
            self.counts["suppressed"] += suppressed
            for change in changes:
                self.decided += 1
                self.pending.append(Decided(self.decided, change.key().decode(), change.payload(host).decode()))
        self.closed = max(self.closed, last)
        self.minutes.forget(current)
        return max(0, last + 1 - first)

    def save(self, folder: Path) -> None:
        """Replace the file in *folder*. Raises OSError."""
        value = {
            "version": VERSION,
            "query": self.query,
            "batch": self.batch,
            "closed": self.closed,
            "decided": self.decided,
            "counts": self.counts,
            "raised": {rule: sorted(subjects) for rule, subjects in sorted(self.raised.items())},
            "pending": self.pending,
            "minutes": {str(number): minute.to_json() for number, minute in sorted(self.minutes.by_number.items())},
        }
        publish_file(folder / STATE, json.dumps(value).encode())

    @classmethod
    def load(cls, folder: Path) -> LiveState:
        """Return the state in *folder*, a new one if there is none.

        Raises:
            PipelineError: the file is damaged, or of another version.
            OSError: it cannot be read.
        """
        path = folder / STATE
        if not path.exists():
            return cls()
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
            if value["version"] != VERSION:
                raise PipelineError(f"{path}: unsupported version {value['version']!r}. Remove the file to begin with empty counters")
            minutes = Minutes({int(number): Minute.from_json(each) for number, each in value["minutes"].items()})
            raised = {rule: set(subjects) for rule, subjects in value["raised"].items()}
            pending = [Decided(*each) for each in value["pending"]]
            state = cls(value["query"], value["batch"], minutes, value["closed"], raised, pending, value["decided"])
            state.counts |= value["counts"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise PipelineError(f"{path}: damaged file. Remove the file to begin with empty counters") from None
        return state
