"""The state of the job: counters, alerts, and the number of the last batch in them; also as text. Spec: sbus-live(8), After a kill.

::

    DIR/
      state.json          all but counters of minutes, and the minutes that have changed since the file was written before
      minutes/N.json      counters of minute N since 1970, as they were when they had not changed between two writes of state.json

Each file is replaced atomically. A minute in ``state.json`` is newer than its file. A minute is written to its file only while the same
counters are in ``state.json``, so a kill between the two changes nothing. So a batch rewrites the minutes that it changed, not all.

A batch that Spark repeats after a kill is in the file, and is not counted twice. A decided alert is in the file until it is published.
"""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sbus.protocol.printable import printable
from sbus_archive.pipeline.errors import PermanentError
from sbus_archive.pipeline.live.alerts import Raised, Usual, decide
from sbus_archive.pipeline.live.minutes import ALL, KEPT_MINUTES, MEASURES, PREFIX, USER, Counts, Group, Important, Minute, Minutes
from sbus_archive.pipeline.live.open_calls import BatchCalls, CallRequest, OpenCalls
from sbus_archive.storage.files import publish_file
from sbus_programs.config.live import ANOMALY, LiveSettings

STATE = "state.json"
MINUTES = "minutes"
VERSION = 1

MAX_PENDING = 1000
"""Alerts that wait for publication. If there are more, older ones are dropped and counted."""

_TOTALS = (
    *("messages", "lost", "interruptions", "late", "repeated_batches", "suppressed", "starts", "calls_dropped"),
    *("alerts_refused", "alerts_dropped", "alerts_stored", "alerts_not_stored"),
)


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
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOTALS, 0))
    """Totals since the state was created; for their meaning see sbus-live(8)."""
    series: str = field(default_factory=lambda: f"alerts-{secrets.token_hex(8)}")
    """The series of the alerts in the outbox. It is random, because a new state begins with number 1 again."""
    calls: OpenCalls = field(default_factory=OpenCalls)
    """Calls without a reply so far."""
    _in_state_file: set[int] = field(default_factory=set, compare=False)
    """The minutes whose counters ``state.json`` has."""

    def begin(self, query: str, now: float) -> None:
        """Begin a run: the minutes since the last closed one are incomplete, because messages between two runs are missing."""
        if query != self.query:
            self.query, self.batch = query, -1
        minute = int(now // 60)
        self.closed = min(self.closed, minute - 1)
        self.minutes.forget(minute)
        self.minutes.mark_incomplete(self.closed + 1 if self.closed else minute, minute)
        self.counts["starts"] += 1

    def fold(
        self,
        batch: int,
        groups: Iterable[Group],
        losses: Losses,
        settings: LiveSettings,
        usual: frozenset[str],
        *,
        calls: BatchCalls | None = None,
    ) -> bool:
        """Add the sums of a batch, unless they were added before; return whether they were added. *usual*: prefixes with a usual number."""
        if batch <= self.batch:
            self.counts["repeated_batches"] += 1
            return False
        self.batch = batch
        slow = [] if calls is None else self.calls.fold(calls, int(settings.slow_call * 1e9))
        self.counts["calls_dropped"] = self.calls.dropped
        known = [*groups, *slow]
        self.minutes.fold(known, Important(self._raised_by_group(settings), usual, settings.thresholds))
        self.counts["messages"] += sum(each.counts[0] for each in known)
        self.counts["late"] += sum(each.counts[0] for each in known if each.minute <= self.closed)
        self.counts["lost"] += losses.lost
        self.counts["interruptions"] += losses.interruptions
        if losses.first is not None and losses.last is not None:
            self.minutes.mark_incomplete(losses.first, losses.last)
        return True

    def _raised_by_group(self, settings: LiveSettings) -> dict[str, set[str]]:
        """Return the subjects whose alert is raised, for each group."""
        found: dict[str, set[str]] = {PREFIX: set(self.raised.get(ANOMALY, ()))}
        for rule in settings.thresholds:
            found.setdefault(rule.by, set()).update(self.raised.get(rule.name, ()))
        return found

    def due(self, settings: LiveSettings, now: float) -> range:
        """Return the numbers of the minutes that have ended and are not closed."""
        current = int(now // 60)
        last = int((now - settings.delay) // 60) - 1
        begun = min(self.minutes.by_number, default=current)
        # The clock may have been set back.
        return range(max(min(self.closed, current) + 1, last - KEPT_MINUTES + 1, begun), last + 1)

    def close(self, settings: LiveSettings, usual: Callable[[int], Mapping[str, Usual] | None], now: float, host: str) -> int:
        """Compare the minutes that are due with the thresholds; return the number of closed minutes.

        *usual* returns the usual numbers of messages in the hour of a minute, None if they are not known.
        """
        current = int(now // 60)
        numbers = self.due(settings, now)
        for number in numbers:
            changes, suppressed = decide(settings, self.minutes.at(number), number, usual(number), self.raised)
            self.counts["suppressed"] += suppressed
            for change in changes:
                self.decided += 1
                self.pending.append(Decided(self.decided, change.key().decode(), change.payload(host).decode()))
        # The first may be in the outbox already.
        excess = max(0, len(self.pending) - MAX_PENDING)
        del self.pending[1 : 1 + excess]
        self.counts["alerts_dropped"] += excess
        self.closed = max(min(self.closed, current), numbers.stop - 1)
        self.minutes.forget(current)
        return len(numbers)

    def save(self, folder: Path) -> None:
        """Replace the files in *folder* that must change. Raises OSError."""
        minutes, changed = folder / MINUTES, set(self.minutes.changed)
        minutes.mkdir(exist_ok=True)
        for number in sorted(self._in_state_file - changed):
            if (minute := self.minutes.by_number.get(number)) is not None:
                publish_file(minutes / f"{number}.json", json.dumps(minute.to_json()).encode())
        value = {
            "version": VERSION,
            "series": self.series,
            "query": self.query,
            "batch": self.batch,
            "closed": self.closed,
            "decided": self.decided,
            "counts": self.counts,
            "raised": {rule: sorted(subjects) for rule, subjects in sorted(self.raised.items())},
            "pending": self.pending,
            "calls": list(self.calls.by_number.values()),
            "minutes": {str(number): self.minutes.by_number[number].to_json() for number in sorted(changed)},
        }
        publish_file(folder / STATE, json.dumps(value).encode())
        self._in_state_file = changed
        self.minutes.changed.clear()
        kept = {f"{number}.json" for number in self.minutes.by_number}
        for path in minutes.iterdir():
            if path.name not in kept:
                path.unlink()

    @classmethod
    def load(cls, folder: Path) -> LiveState:
        """Return the state in *folder*, a new one if there is none.

        Raises:
            PermanentError: a file is damaged, or of another version.
            OSError: it cannot be read.
        """
        path = folder / STATE
        if not path.exists():
            return cls()
        try:
            value: dict[str, Any] = json.loads(path.read_bytes())
            if value["version"] != VERSION:
                raise PermanentError(f"{path}: unsupported version {value['version']!r}. Remove the file to begin with empty counters")
            newest = {int(number): Minute.from_json(each) for number, each in value["minutes"].items()}
            raised = {rule: set(subjects) for rule, subjects in value["raised"].items()}
            pending = [Decided(*each) for each in value["pending"]]
            state = cls(value["query"], value["batch"], Minutes(newest), value["closed"], raised, pending, value["decided"])
            state.counts |= value["counts"]
            state.series = str(value["series"])
            requests = [CallRequest(*each) for each in value["calls"]]
            state.calls = OpenCalls({each.call_id: each for each in requests}, state.counts["calls_dropped"])
        except _DAMAGE:
            raise PermanentError(f"{path}: damaged file. Remove the file to begin with empty counters") from None
        state._in_state_file = set(newest)
        for number, minute in _minutes_in(folder / MINUTES):
            state.minutes.by_number.setdefault(number, minute)
        return state


_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _minutes_in(folder: Path) -> Iterator[tuple[int, Minute]]:
    """Yield the minutes with a file of their own, and their numbers. Raises PermanentError, OSError."""
    for path in folder.glob("[0-9]*.json"):
        try:
            minute = int(path.stem), Minute.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:
            # The job has dropped the minute since.
            continue
        except _DAMAGE:
            raise PermanentError(f"{path}: damaged file. Remove the file; the counters of this minute are lost") from None
        yield minute


ROWS = 10
"""Rows of each table."""

_NAME_WIDTH = 30
_TITLES = {ALL: "minute (UTC)", PREFIX: "key prefix", USER: "user id"}


def lines_of(state: LiveState, minutes: int) -> Iterator[str]:
    """Yield the lines that show the newest closed *minutes* of *state*: by minute, by key prefix, by user; alerts; totals."""
    closed = [number for number in sorted(state.minutes.by_number) if number <= state.closed][-minutes:]
    if not closed:
        yield "no finished minute yet"
    else:
        yield _header(ALL)
        for number in closed[-ROWS:]:
            minute = state.minutes.by_number[number]
            name = datetime.datetime.fromtimestamp(number * 60, datetime.UTC).strftime("%Y-%m-%d %H:%M")
            yield _row(name + (" incomplete" if minute.is_incomplete else ""), minute.groups[ALL].get("", [0] * len(MEASURES)))
        for group in (PREFIX, USER):
            yield ""
            yield _header(group)
            sums = _sums(state, closed, group)
            for subject, counts in sorted(sums.items(), key=lambda item: (item[0] is None, -item[1][0], -item[1][1], item[0]))[:ROWS]:
                yield _row("(others)" if subject is None else subject, counts)
    raised = [f"{rule}: {subject or 'all'}" for rule, subjects in sorted(state.raised.items()) for subject in sorted(subjects)]
    yield ""
    yield f"alerts raised: {len(raised)}, waiting for publication: {len(state.pending)}"
    yield from (f"  {printable(each, 77)[:77]}" for each in raised[:ROWS])
    yield from _totals(state)


def _totals(state: LiveState) -> Iterator[str]:
    """Yield the totals, two in a line."""
    pairs = [f"{name.replace('_', ' ')}: {count}" for name, count in state.counts.items()]
    for first in range(0, len(pairs), 2):
        yield "  ".join(f"{each:<38}" for each in pairs[first : first + 2]).rstrip()


def _sums(state: LiveState, closed: list[int], group: str) -> dict[str | None, Counts]:
    """Return the sums of each subject over the minutes *closed*; None is for subjects without counters of their own."""
    sums: dict[str | None, Counts] = {}
    for number in closed:
        minute = state.minutes.by_number[number]
        found: list[tuple[str | None, Counts]] = [*minute.groups[group].items()]
        if group in minute.others:
            found.append((None, minute.others[group]))
        for name, counts in found:
            total = sums.setdefault(name, [0] * len(MEASURES))
            for place, count in enumerate(counts):
                total[place] += count
    return sums


def _header(group: str) -> str:
    """Return the line above a table."""
    return f"{_TITLES[group]:<{_NAME_WIDTH}}" + "".join(f"{name:>{width}}" for name, width in _WIDTHS.items())


def _row(name: str, counts: Counts) -> str:
    """Return one line of a table."""
    cells = "".join(f"{_short(count):>{width}}" for count, width in zip(counts, _WIDTHS.values(), strict=True))
    return f"{printable(name, _NAME_WIDTH)[: _NAME_WIDTH - 1]:<{_NAME_WIDTH}}{cells}"


def _short(count: int) -> str:
    """Return *count* in at most six characters; a large one in thousands, rounded down."""
    for unit in ("", "k", "M", "G", "T", "P"):
        if count < 100_000:
            return f"{count}{unit}"
        count //= 1000
    return f"{count}E"


_WIDTHS = dict(zip(MEASURES, (9, 8, 10, 8, 8, 6), strict=True))
