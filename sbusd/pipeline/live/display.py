"""Prints the tables of a state, in 80 columns."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from sbusd.pipeline.live.live_state import LiveState
from sbusd.pipeline.live.minutes import ALL, MEASURES, PREFIX, USER, Counts
from sbusd.protocol.printable import printable

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
