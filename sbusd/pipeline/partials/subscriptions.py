"""Between which positions each subscription was active, and which subscriptions match a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sbusd.archive.record.schema import key_bytes
from sbusd.protocol.pattern_index import PatternIndex

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
