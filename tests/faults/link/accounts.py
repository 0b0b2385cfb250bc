"""Checks what subscribers received of other hosts against what was published there: order, duplicates, and the count of each loss. No I/O.

A publisher numbers its messages from 1 on; its keys take turns. The payload names the publisher and the number.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from sbus.protocol.keys import pattern_matches

KEYS = (b"load/a", b"load/b/x", b"load/c")
"""The keys of each publisher, in turn."""


class LossError(AssertionError):
    """A message was repeated, reordered, or lost without a correct report."""


@dataclass(slots=True, eq=False)
class Series:
    """The messages of one publisher, on its bus on the host *origin*. *sent*: number of the last one."""

    name: str
    origin: str
    sent: int = 0


@functools.cache
def _is_matched(patterns: tuple[bytes, ...], origin: str, key: int) -> bool:
    """Return whether one of *patterns* matches the key with that index of the host *origin*; asked for each message many times."""
    return any(pattern_matches(pattern, b"host/%b/%b" % (origin.encode(), KEYS[key])) for pattern in patterns)


@dataclass(slots=True, eq=False)
class Receiver:
    """One subscriber on *host*, and what it received: names of series with numbers, and counts of losses (0: unknown)."""

    name: str
    host: str
    patterns: tuple[bytes, ...]
    items: list[tuple[str, int] | int] = field(default_factory=list)
    since: dict[str, int] | None = None
    """By series, how many of its messages were published before they were wanted for certain; None: nothing is certain yet."""
    is_exact: bool = False
    """Whether losses of earlier messages cannot be reported any more: then no report may be too high."""
    begin: int = 0
    """Where in *items* the present round begins."""

    def wants(self, series: Series, number: int) -> bool:
        """Return whether a pattern matches that message."""
        return series.origin != self.host and _is_matched(self.patterns, series.origin, number % len(KEYS))

    def gaps(self) -> list[int]:
        """Return the reported losses of the present round."""
        return [item for item in self.items[self.begin :] if isinstance(item, int)]


class Accounts:
    """All series and receivers. A round ends when nothing is on the way any more."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self.receivers: list[Receiver] = []
        self.lost = 0
        """Missing messages in all rounds, over all receivers."""
        self.unknown = 0
        """Reports of an unknown number."""

    def add_series(self, name: str, origin: str) -> Series:
        """Return a new series."""
        assert name not in self.series
        made = self.series[name] = Series(name, origin)
        return made

    def begin(self, receiver: Receiver, *, is_exact: bool) -> None:
        """Note that from now on the messages of all hosts are wanted for certain. *is_exact*: and no message is on the way."""
        receiver.since = {name: series.sent for name, series in self.series.items()}
        receiver.is_exact = is_exact
        if is_exact:
            receiver.begin = len(receiver.items)

    def missing(self, receiver: Receiver) -> list[tuple[str, int]]:
        """Return the messages of the present round that *receiver* should have and does not."""
        if receiver.since is None:
            return []
        received = {item for item in receiver.items if isinstance(item, tuple)}
        return [
            (name, number)
            for name, series in self.series.items()
            for number in range(receiver.since.get(name, 0) + 1, series.sent + 1)
            if receiver.wants(series, number) and (name, number) not in received
        ]

    def is_balanced(self, receiver: Receiver) -> bool:
        """Return whether as many messages are reported lost as are missing, or an unknown number."""
        gaps = receiver.gaps()
        return 0 in gaps or len(self.missing(receiver)) <= sum(gaps)

    def check(self, receiver: Receiver, excused: Iterable[tuple[str, str]]) -> None:
        """Judge the present round of *receiver*. *excused*: receiver and origin of losses whose number may be unknown.

        Raises:
            LossError: a message is missing, repeated or out of order.
        """
        where = f"{receiver.name} on {receiver.host}, {receiver.patterns}"
        self._check_order(receiver, where)
        if receiver.since is None:
            return
        gaps, missing = receiver.gaps(), self.missing(receiver)
        if 0 in gaps:
            origins = {series.origin for series in self.series.values() if any(receiver.wants(series, each) for each in (1, 2, 3))}
            if not any(host == receiver.host and origin in origins for host, origin in excused):
                raise LossError(f"{where}: reported an unknown loss without a reason: {gaps}; missing {_ranges(missing)}")
        elif len(missing) > sum(gaps):
            raise LossError(f"{where}: {len(missing)} missing, reported {gaps}: {_ranges(missing)}")
        if receiver.is_exact and sum(gaps) > len(missing):
            raise LossError(f"{where}: {len(missing)} missing, but reported {gaps}: {_ranges(missing)}")
        self._check_places(receiver, missing, where)

    def end_round(self, receiver: Receiver) -> None:
        """Begin the next round of *receiver*, after :meth:`check`."""
        self.lost += len(self.missing(receiver))
        self.unknown += receiver.gaps().count(0)
        if receiver.since is not None:
            self.begin(receiver, is_exact=True)

    def _check_order(self, receiver: Receiver, where: str) -> None:
        """Raise LossError for a message that is not wanted, not published, repeated, or out of order for its publisher and key."""
        last: dict[tuple[str, int], int] = {}
        for item in receiver.items:
            if isinstance(item, int):
                continue
            name, number = item
            series = self.series.get(name)
            if series is None or not 0 < number <= series.sent or not receiver.wants(series, number):
                raise LossError(f"{where}: received {item}, which it does not want, or that was not published")
            before = last.get((name, number % len(KEYS)), 0)
            if number <= before:
                raise LossError(
                    f"{where}: received number {number} of {name} after {before}: {'repeated' if number == before else 'order'}"
                )
            last[name, number % len(KEYS)] = number

    def _check_places(self, receiver: Receiver, missing: list[tuple[str, int]], where: str) -> None:
        """Raise LossError unless a report is between the messages of its publisher and key before and after each missing one.

        What is published between two reports of an unknown number may be missing too.
        """
        places: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for place, item in enumerate(receiver.items):
            if isinstance(item, tuple):
                places.setdefault((item[0], item[1] % len(KEYS)), []).append((item[1], place))
        reports = [place for place, item in enumerate(receiver.items) if isinstance(item, int)]
        unknown = list(itertools.pairwise(place for place in reports if receiver.items[place] == 0))
        for name, number in missing:
            received = places.get((name, number % len(KEYS)), [])
            index = bisect.bisect(received, (number,))
            before = received[index - 1][1] if index else -1
            after = received[index][1] if index < len(received) else len(receiver.items)
            found = bisect.bisect(reports, before)
            if found < len(reports) and reports[found] < after:
                continue
            if not any(first < after and second > before for first, second in unknown):
                raise LossError(f"{where}: no report between items {before} and {after}, where number {number} of {name} is missing")


def _ranges(missing: list[tuple[str, int]]) -> str:
    """Return *missing* in short."""
    by_series: dict[str, list[int]] = {}
    for name, number in missing:
        by_series.setdefault(name, []).append(number)
    return ", ".join(f"{name}: {len(numbers)} from {min(numbers)} to {max(numbers)}" for name, numbers in by_series.items())
