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
