"""The subscriptions, and the routes of the keys of one batch of messages, as Arrow arrays. Python sees each key once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbus.protocol.pattern_index import PatternIndex
from sbus_archive.pipeline.partials.rows import encoded_array, numbers, ones, summed, with_columns
from sbus_archive.record.schema import key_bytes

OPEN = (1 << 63) - 1
"""The end of a subscription that did not end: after every position of a record."""

MAX_BRANCHES = 256
"""Maximum number of branches of one user's patterns that the search for a key follows at a time. With ``*``, ``a*``, ``aa*``, … in each of
two segments it is their product, so a user could make the search slow for the keys of others. Most users have fewer than ten.
"""

MAX_ROUTES = 256
"""Maximum number of routes of one user per key and hour; the earliest are used. Each message of the key is compared with each route, so
a user who subscribes in a loop could make the hour slow. Most users have one or two.
"""


class SubscriptionEvent(NamedTuple):
    """One row of the record that begins or ends subscriptions."""

    seq: int
    kind: str
    conn: int | None
    key: str | None
    uid: int | None
    unit: str | None


class Subscription(NamedTuple):
    """One pattern of one connection, and the positions between which it was active."""

    pattern: str
    conn: int
    uid: int | None
    unit: str | None
    since: int
    until: int


class Route(NamedTuple):
    """One connection with a subscription that matches a key, between two positions of the record."""

    conn: int
    uid: int | None
    unit: str | None
    since: int
    until: int


def subscriptions(events: Iterable[SubscriptionEvent], ends: Mapping[int | None, int]) -> Iterator[Subscription]:
    """Yield the subscriptions of one hour and host; *events* are ordered by position.

    *ends* has the last position of users whose events were cut off: their subscriptions are not known after it.
    """
    active: dict[int, dict[str, SubscriptionEvent]] = {}
    for event in events:
        if event.kind == "restart":
            for conn in list(active):
                yield from _ended(active.pop(conn), conn, event.seq)
        elif event.conn is None:
            continue
        elif event.kind == "disconnect":
            yield from _ended(active.pop(event.conn, {}), event.conn, event.seq)
        elif event.key is None:
            continue
        elif event.kind == "unsubscribe":
            if (begun := active.get(event.conn, {}).pop(event.key, None)) is not None:
                yield from _ended({event.key: begun}, event.conn, event.seq)
        else:
            active.setdefault(event.conn, {}).setdefault(event.key, event)
    for conn, patterns in active.items():
        for pattern, begun in patterns.items():
            yield Subscription(pattern, conn, begun.uid, begun.unit, begun.seq, ends.get(begun.uid, OPEN))


def _ended(patterns: dict[str, SubscriptionEvent], conn: int, seq: int) -> Iterator[Subscription]:
    """Yield *patterns* of *conn*, which were active until *seq*."""
    for pattern, begun in patterns.items():
        yield Subscription(pattern, conn, begun.uid, begun.unit, begun.seq, seq)


def _bounded(routes: Iterable[Route]) -> Iterator[Route]:
    """Yield the first :data:`MAX_ROUTES` of each user."""
    counts: dict[int | None, int] = {}
    for route in sorted(routes, key=lambda route: (route.since, route.until)):
        counts[route.uid] = counts.get(route.uid, 0) + 1
        if counts[route.uid] <= MAX_ROUTES:
            yield route


def searchable(patterns: Iterable[bytes]) -> set[bytes]:
    """Return those of one user's *patterns* that are used: all, unless they have more than :data:`MAX_BRANCHES`.

    Of the patterns with a star, the first half is used then, or a quarter, and so on; 256 patterns never have too many. Those without a
    star do not multiply, and are all used.
    """
    plain = {pattern for pattern in patterns if b"*" not in pattern}
    stars = [pattern for pattern in patterns if b"*" in pattern]
    while PatternIndex(stars).most_branches() > MAX_BRANCHES:
        stars = stars[: len(stars) // 2]
    return plain.union(stars)


def _raw(text: str) -> bytes | None:
    """Return a key or pattern of the record as bytes, or None if the text is invalid: it matches nothing."""
    try:
        return key_bytes(text)
    except ValueError:
        return None


def _in_use(ordered: list[Subscription]) -> Iterator[tuple[bytes, Subscription]]:
    """Yield those of *ordered* subscriptions whose patterns are used: of each user as many as do not make the search slow."""
    valid = [(pattern, each) for each in ordered if (pattern := _raw(each.pattern)) is not None]
    patterns: dict[int | None, dict[bytes, None]] = {}
    for pattern, each in valid:
        patterns.setdefault(each.uid, {})[pattern] = None
    used = {uid: searchable(of_user) for uid, of_user in patterns.items()}
    return ((pattern, each) for pattern, each in valid if pattern in used[each.uid])


class RouteTable:
    """The subscriptions of one hour and host, by key."""

    def __init__(self, some: Iterable[Subscription]) -> None:
        self._by_pattern: dict[bytes, list[Subscription]] = {}
        for pattern, each in _in_use(sorted(some, key=lambda each: each.since)):
            self._by_pattern.setdefault(pattern, []).append(each)
        self._index = PatternIndex(self._by_pattern)

    def patterns(self, key: str) -> tuple[bytes, ...]:
        """Return the patterns that match *key*, in order. Keys with the same patterns have the same routes."""
        raw = _raw(key)
        return () if raw is None else tuple(self._index.match(raw))

    def of_patterns(self, patterns: Iterable[bytes]) -> list[Route]:
        """Return the routes of keys that match *patterns*. A connection with several of them has one route at a time, because it receives
        a message once."""
        taken = [each for pattern in patterns for each in self._by_pattern[pattern]]
        routes: list[Route] = []
        conn = None
        for each in sorted(taken, key=lambda each: (each.conn, each.since, each.until)):
            if conn == each.conn and each.since <= routes[-1].until:
                routes[-1] = routes[-1]._replace(until=max(routes[-1].until, each.until))
            else:
                routes.append(Route(each.conn, each.uid, each.unit, each.since, each.until))
            conn = each.conn
        return list(_bounded(routes))


_FIELDS = pa.schema(
    [
        pa.field("conn", pa.int64()),
        pa.field("to_uid", pa.int64()),
        pa.field("to_unit", pa.string()),
        pa.field("since", pa.int64()),
        pa.field("until", pa.int64()),
    ]
)
_NO_KEY = 0
"""The number of the set without routes, which messages without a key have too."""


MAX_ROUTES_AT_ONCE = 1 << 18
"""Maximum number of routes and patterns of different sets in memory at once (or those of one key): a user can invent keys with different
sets."""


class KeyRoutes:
    """The routes of ``keys``, text of the record, from number ``begin`` to ``end`` (exclusive). Keys with the same matching patterns share
    a set of routes."""

    def __init__(self, table: RouteTable, keys: Sequence[str], begin: int = 0) -> None:
        known: dict[tuple[bytes, ...], int] = {(): _NO_KEY}
        sets: list[list[Route]] = [[]]
        of_keys = [_NO_KEY] * len(keys)
        self.end, count = begin, 0
        while self.end < len(keys) and count <= MAX_ROUTES_AT_ONCE:
            patterns = table.patterns(keys[self.end])
            if (number := known.get(patterns)) is None:
                number = known[patterns] = len(sets)
                sets.append(table.of_patterns(patterns))
                count += len(patterns) + len(sets[number])
            of_keys[self.end] = number
            self.end += 1
        self._sets = pa.array(of_keys, pa.int32())
        self._bounds = [sorted({bound for route in each for bound in (route.since, route.until) if bound != OPEN}) for each in sets]
        flat = [route for each in sets for route in each]
        columns = zip(*flat, strict=True) if flat else [()] * len(_FIELDS)
        self._routes = pa.table([pa.array(column, field.type) for column, field in zip(columns, _FIELDS, strict=True)], schema=_FIELDS)
        position = 0
        members = []
        for each in sets:
            members.append(range(position, position + len(each)))
            position += len(each)
        self._members = pa.array(members, pa.list_(pa.int32()))

    @classmethod
    def of_messages(cls, table: RouteTable, messages: pa.Table) -> Iterator[tuple[KeyRoutes, pa.Table]]:
        """Yield *messages*, with the column ``key``, in parts with the routes of their keys. Those without a key are in the first part."""
        encoded = encoded_array(messages.column("key"))
        keys = encoded.dictionary.to_pylist()
        routes = cls(table, keys)
        if routes.end == len(keys):
            yield routes, messages
            return
        begin = 0
        while True:
            is_in_part = pc.and_(pc.greater_equal(encoded.indices, begin), pc.less(encoded.indices, routes.end))
            yield routes, messages.filter(pc.fill_null(is_in_part, begin == 0)).combine_chunks()
            if (begin := routes.end) == len(keys):
                return
            routes = cls(table, keys, begin)

    def spans(self, messages: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return a number for each of *messages*, with the columns ``key`` and ``seq``. Messages with the same key and number have the same
        routes at their positions."""
        none = pc.subtract(ones(messages), 1)
        sets = pa.chunked_array([self._sets_of(messages)])
        placed = pa.table({"set": sets, "seq": messages.column("seq"), "number": numbers(messages), "step": none})
        changes = self._changes(placed)
        if not changes.num_rows:
            return none
        is_placed = pc.is_in(sets, pc.unique(changes.column("set")))
        together = pa.concat_tables([placed.filter(is_placed), changes]).combine_chunks()
        # A change counts for the messages after it.
        ordered = together.sort_by([("set", "ascending"), ("seq", "ascending"), ("step", "ascending")])
        counted = with_columns(ordered, {"span": pc.cumulative_sum(ordered.column("step"))})
        found = counted.filter(pc.equal(counted.column("step"), 0)).sort_by([("number", "ascending")])
        return pc.replace_with_mask(none, is_placed.combine_chunks(), found.column("span").combine_chunks())

    def _changes(self, placed: pa.Table) -> pa.Table:
        """Return the positions at which the routes of a set change between its first and its last message."""
        ends = with_columns(placed, {"last": placed.column("seq")})
        sets, positions = [], []
        for row in summed(ends, ["set"], least=["seq"], most=["last"]).to_pylist():
            bounds = self._bounds[row["set"]]
            inner = bounds[bisect_left(bounds, row["seq"]) : bisect_left(bounds, row["last"])]
            sets += [row["set"]] * len(inner)
            positions += inner
        step = pa.repeat(pa.scalar(1, pa.int64()), len(sets))
        number = pa.nulls(len(sets), pa.int64())
        return pa.table({"set": pa.array(sets, pa.int32()), "seq": pa.array(positions, pa.int64()), "number": number, "step": step})

    def divided(self, groups: pa.Table, most: int) -> Iterator[pa.Table]:
        """Yield *groups* of messages in parts with at most *most* routes (or one group)."""
        sizes = pc.list_value_length(self._members).take(self._sets_of(groups))
        if (pc.sum(sizes).as_py() or 0) <= most:
            yield groups
            return
        begin, total = 0, 0
        for number, size in enumerate(sizes.to_pylist()):
            if total + size > most and number > begin:
                yield groups.slice(begin, number - begin).combine_chunks()
                begin, total = number, 0
            total += size
        yield groups.slice(begin).combine_chunks()

    def candidates(self, groups: pa.Table) -> pa.Table:
        """Return the connections that received the messages of *groups*, if the record is complete and they missed none: a row for each
        with the number of the ``group``, ``conn``, ``to_uid`` and ``to_unit``."""
        lists = self._members.take(self._sets_of(groups))
        parents = pc.list_parent_indices(lists)
        found = with_columns(self._routes.take(pc.list_flatten(lists)), {"group": groups.column("group").take(parents)})
        at, only = (groups.column(name).take(parents) for name in ("seq", "to_conn"))
        is_active = pc.and_(pc.greater_equal(at, found.column("since")), pc.less_equal(at, found.column("until")))
        is_meant = pc.fill_null(pc.equal(only, found.column("conn")), True)
        return found.filter(pc.and_(is_active, is_meant)).select(["group", "conn", "to_uid", "to_unit"])

    def _sets_of(self, messages: pa.Table) -> pa.Array:
        """Return the number of the set of each message."""
        return pc.fill_null(self._sets.take(encoded_array(messages.column("key")).indices), _NO_KEY)
