"""Divides the hours of a computation into portions, and portions into tasks of Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.schema import RowKind
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.schema import CALLS, DISCONNECTS, FLOWS, LINKS, RELAY, SECURITY

PORTION_ROWS = 1 << 20
"""Maximum number of rows of a portion (or one segment): half a second of work, and a hundred megabytes of memory."""

PORTION_BYTES = 1 << 30
"""Maximum number of bytes of these rows before compression, as the index counts them (or one segment). A user can publish keys of four
thousand bytes, and an Arrow array has at most 2 GiB of text."""

CALLS_ROWS = 1 << 22
"""The same for calls, which need the whole hour of a host: with more rows, it is divided by the numbers of its calls. Each of these
portions reads all segments, and keeps its share of the calls."""

TASK_PORTIONS = 64
"""Maximum number of portions of a task: with small segments, opening them takes longer than reading them."""

TASKS_PER_PROCESSOR = 2
"""Number of tasks for each processor, at least: portions differ in size."""

SUBSCRIPTION_KINDS = (RowKind.SNAPSHOT, RowKind.SUBSCRIBE, RowKind.UNSUBSCRIBE, RowKind.DISCONNECT, RowKind.RESTART)
"""Kinds of rows that begin or end subscriptions."""

_ONLY_KIND = {SECURITY.name: RowKind.DENIAL, DISCONNECTS.name: RowKind.DISCONNECT, RELAY.name: RowKind.RELAY}
"""Tables whose rows come from rows of one kind, which index entries count."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A portion of the rows of one host and hour, which is summed at once."""

    hour: Hour
    host: str
    segments: tuple[IndexEntry, ...]
    others: tuple[IndexEntry, ...] = ()
    """Segments that are needed to interpret the rows: for flows those with subscriptions, for calls those of the next hour."""
    share: int = 0
    """For calls: which of ``shares`` parts of the numbers of calls, from 0."""
    shares: int = 1
    """A power of two."""
    is_whole: bool = False
    """Whether it has all rows of the hour and host. Then Spark need not add up its rows with those of others."""
    is_following: bool = False
    """For links: whether the segments are of an hour after those that are computed."""

    @property
    def rows(self) -> int:
        """Number of rows of the segments; of a share of them, its part."""
        return sum(entry.rows for entry in self.segments) // self.shares


def portions_of(table: str, hours: Sequence[Manifest]) -> list[Portion]:
    """Return the portions for *table*, of all *hours*. Segments that cannot have rows for the table are left out."""
    if table == CALLS.name:
        return [portion for hour in hours for portion in _calls(hour)]
    found = [portion for hour in hours for portion in _portions(table, hour.hour, hour.segments)]
    if table == LINKS.name:
        own = {entry.path for hour in hours for entry in hour.segments}
        after = {entry.path: entry for hour in hours for entry in hour.following if entry.path not in own}
        by_hour: defaultdict[Hour, list[IndexEntry]] = defaultdict(list)
        for entry in after.values():
            by_hour[Hour(entry.date, entry.hour)].append(entry)
        for hour, entries in by_hour.items():
            found += _portions(table, hour, entries, is_following=True)
    return found


def grouped(portions: Sequence[Portion], processors: int) -> Iterator[tuple[Portion, ...]]:
    """Yield *portions* in groups for one task each: several for each of *processors*, unless there are too few."""
    most_rows = min(PORTION_ROWS, sum(portion.rows for portion in portions) // (TASKS_PER_PROCESSOR * processors))
    group: list[Portion] = []
    rows = 0
    for portion in portions:
        if group and (rows + portion.rows > most_rows or len(group) == TASK_PORTIONS):
            yield tuple(group)
            group, rows = [], 0
        group.append(portion)
        rows += portion.rows
    if group:
        yield tuple(group)


def _by_host(entries: Iterable[IndexEntry]) -> dict[str, list[IndexEntry]]:
    """Return *entries* by host."""
    found: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        found.setdefault(entry.host, []).append(entry)
    return found


def _portions(table: str, hour: Hour, entries: Iterable[IndexEntry], *, is_following: bool = False) -> Iterator[Portion]:
    """Yield the portions of one hour."""
    kind = _ONLY_KIND.get(table)
    for host, each in _by_host(entries).items():
        others = tuple(entry for entry in each if may_have(entry, SUBSCRIPTION_KINDS)) if table == FLOWS.name else ()
        groups = list(_divided([entry for entry in each if kind is None or may_have(entry, (kind,))]))
        for group in groups:
            yield Portion(hour, host, group, others, is_whole=len(groups) == 1, is_following=is_following)


def may_have(entry: IndexEntry, kinds: Iterable[RowKind]) -> bool:
    """Return whether the segment of *entry* can have rows of *kinds*; its counts need not be complete."""
    return sum(entry.kinds.values()) != entry.rows or any(entry.kinds.get(kind.value) for kind in kinds)


def _divided(entries: Iterable[IndexEntry]) -> Iterator[tuple[IndexEntry, ...]]:
    """Yield *entries* in groups of at most :data:`PORTION_ROWS` rows and :data:`PORTION_BYTES` bytes."""
    group: list[IndexEntry] = []
    for entry in entries:
        rows, size = sum(each.rows for each in group) + entry.rows, sum(map(_size, group)) + _size(entry)
        if group and (rows > PORTION_ROWS or size > PORTION_BYTES):
            yield tuple(group)
            group = []
        group.append(entry)
    if group:
        yield tuple(group)


def _size(entry: IndexEntry) -> int:
    """Return the bytes of the rows of a segment before compression. Not all entries count them; most segments have a few times of
    theirs."""
    return max(sum(entry.users.values()) + entry.unnamed, 4 * entry.bytes)


def _calls(hour: Manifest) -> Iterator[Portion]:
    """Yield the portions for calls: all segments of a host and hour, and its share of the calls."""
    following = _by_host(hour.following)
    for host, entries in _by_host(hour.segments).items():
        needed = max(-(-sum(entry.rows for entry in entries) // CALLS_ROWS), -(-sum(map(_size, entries)) // PORTION_BYTES), 1)
        shares = 1 << (needed - 1).bit_length()
        for share in range(shares):
            yield Portion(hour.hour, host, tuple(entries), tuple(following.get(host, ())), share, shares, is_whole=shares == 1)
