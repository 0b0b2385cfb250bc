"""The routes of the keys of one batch of messages, as Arrow arrays. Python sees each key once, not each message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.pipeline.partials.rows import encoded_array, numbers, ones, summed, with_columns
from sbusd.pipeline.partials.subscriptions import OPEN, Route, RouteTable

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
"""Maximum number of routes of different sets in memory at once (or those of one key): a user can invent keys with different sets."""


class KeyRoutes:
    """The routes of ``keys``, text of the record, from number ``begin`` to ``end`` (exclusive). Keys with the same matching patterns share
    a set of routes."""

    def __init__(self, table: RouteTable, keys: Sequence[str], begin: int = 0) -> None:
        known: dict[tuple[str, ...], int] = {(): _NO_KEY}
        sets: list[list[Route]] = [[]]
        self._set_of_key = [_NO_KEY] * len(keys)
        self.end, count = begin, 0
        while self.end < len(keys) and count <= MAX_ROUTES_AT_ONCE:
            patterns = table.patterns(keys[self.end])
            if (number := known.get(patterns)) is None:
                number = known[patterns] = len(sets)
                sets.append(table.of_patterns(patterns))
                count += len(sets[number])
            self._set_of_key[self.end] = number
            self.end += 1
        self._sets = pa.array(self._set_of_key, pa.int32())
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
        keys = pa.chunked_array([encoded_array(messages.column("key")).indices])
        placed = pa.table({"key": keys, "seq": messages.column("seq"), "number": numbers(messages), "step": none})
        changes = self._changes(placed)
        if not changes.num_rows:
            return none
        is_placed = pc.is_in(keys, pc.unique(changes.column("key")))
        together = pa.concat_tables([placed.filter(is_placed), changes]).combine_chunks()
        # A change counts for the messages after it.
        ordered = together.sort_by([("key", "ascending"), ("seq", "ascending"), ("step", "ascending")])
        counted = with_columns(ordered, {"span": pc.cumulative_sum(ordered.column("step"))})
        found = counted.filter(pc.equal(counted.column("step"), 0)).sort_by([("number", "ascending")])
        return pc.replace_with_mask(none, is_placed.combine_chunks(), found.column("span").combine_chunks())

    def _changes(self, placed: pa.Table) -> pa.Table:
        """Return the positions at which the routes of a key change between its first and its last message."""
        ends = with_columns(placed, {"last": placed.column("seq")})
        keys, positions = [], []
        for row in summed(ends, ["key"], least=["seq"], most=["last"]).to_pylist():
            if row["key"] is not None:
                bounds = self._bounds[self._set_of_key[row["key"]]]
                inner = bounds[bisect_left(bounds, row["seq"]) : bisect_left(bounds, row["last"])]
                keys += [row["key"]] * len(inner)
                positions += inner
        step = pa.repeat(pa.scalar(1, pa.int64()), len(keys))
        number = pa.nulls(len(keys), pa.int64())
        return pa.table({"key": pa.array(keys, pa.int32()), "seq": pa.array(positions, pa.int64()), "number": number, "step": step})

    def divided(self, groups: pa.Table, most: int) -> Iterator[pa.Table]:
        """Yield *groups* of messages in parts with at most *most* routes (or one group)."""
        sizes = pc.list_value_length(self._lists(groups))
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
        lists = self._lists(groups)
        parents = pc.list_parent_indices(lists)
        found = with_columns(self._routes.take(pc.list_flatten(lists)), {"group": groups.column("group").take(parents)})
        at, only = (groups.column(name).take(parents) for name in ("seq", "to_conn"))
        is_active = pc.and_(pc.greater_equal(at, found.column("since")), pc.less_equal(at, found.column("until")))
        is_meant = pc.fill_null(pc.equal(only, found.column("conn")), True)
        return found.filter(pc.and_(is_active, is_meant)).select(["group", "conn", "to_uid", "to_unit"])

    def _lists(self, groups: pa.Table) -> pa.Array:
        """Return the numbers of the routes of each group."""
        sets = self._sets.take(encoded_array(groups.column("key")).indices)
        return self._members.take(pc.fill_null(sets, _NO_KEY))
