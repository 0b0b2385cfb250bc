"""Between which positions each subscription was active, and which subscriptions match a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sbusd.archive.record.key_text import key_bytes
from sbusd.protocol.keys import KeySpace

OPEN = (1 << 63) - 1
"""The end of a subscription that did not end: after every position of a record."""


MAX_ROUTES = 256
"""Maximum number of routes of one user per key and hour; the earliest are used. Each message of the key is compared with each route, so
a user who subscribes in a loop could make the hour slow. Most users have one or two.
"""

_SPACE = KeySpace()
_RESERVED = b"!/"


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


class RouteTable:
    """The subscriptions of one hour and host, by key."""

    def __init__(self, some: Iterable[Subscription]) -> None:
        self._by_pattern: dict[str, list[Subscription]] = {}
        for each in some:
            self._by_pattern.setdefault(each.pattern, []).append(each)
        self._patterns = PatternSet(self._by_pattern)

    def patterns(self, key: str) -> tuple[str, ...]:
        """Return the patterns that match *key*, in order. Keys with the same patterns have the same routes."""
        return tuple(sorted(self._patterns.matching(key)))

    def of_patterns(self, patterns: Iterable[str]) -> list[Route]:
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


@dataclass(slots=True)
class _Node:
    """A node of the trie: patterns with the same first segments."""

    literal: dict[bytes, _Node] = field(default_factory=dict)
    stars: dict[bytes, _Node] = field(default_factory=dict)
    """By the text before the star."""
    whole: list[str] = field(default_factory=list)
    """Patterns that end here."""
    rest: list[str] = field(default_factory=list)
    """Patterns that end here with a separator, and match every continuation."""


class PatternSet:
    """Patterns of subscriptions, as text of the record, in a trie: the cost of comparing each pattern with each key is their product.

    Spec: sbus-protocol(7) §3.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._root = _Node()
        for text in patterns:
            self._add(text)

    def matching(self, key: str) -> list[str]:
        """Return the patterns that match *key*, in no order; both are text of the record. An invalid text has no match."""
        try:
            raw = key_bytes(key)
        except ValueError:
            return []
        found = _walk(self._root, raw.split(_SPACE.separator))
        if raw.startswith(_RESERVED):
            return [text for text in found if _SPACE.matches(key_bytes(text), raw)]
        return list(found)

    def _add(self, text: str) -> None:
        """Add one pattern, unless it cannot match any key."""
        try:
            segments = key_bytes(text).split(_SPACE.separator)
        except ValueError:
            return
        node = self._root
        for segment in segments if segments[-1] else segments[:-1]:
            before, star, after = segment.partition(b"*")
            if after.strip(b"*"):
                return
            node = (node.stars if star else node.literal).setdefault(before, _Node())
        (node.whole if segments[-1] else node.rest).append(text)


def _walk(root: _Node, segments: list[bytes]) -> Iterator[str]:
    """Yield the patterns under *root* that match *segments*. Not recursive, because a client decides how deep a key is."""
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth == len(segments):
            yield from node.whole
            continue
        yield from node.rest
        segment = segments[depth]
        if (child := node.literal.get(segment)) is not None:
            waiting.append((child, depth + 1))
        waiting += [(child, depth + 1) for before, child in node.stars.items() if segment.startswith(before)]
