"""What the clients of this host want of other hosts: their patterns, as lines of interest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sbus.protocol.keys import intersection
from sbus_services.link.frames import Line, is_origins
from sbus_services.link.remote_interest import COST, MAX_PATTERN_BYTES, MAX_PATTERNS
from sbus_services.link.rules import Import, Rules

HOSTED_HEAD = b"host/"
"""``host/<origin>/<key>`` is the key of a message of another host."""

WITHDRAW_AFTER = 1.0
"""Seconds for which a pattern stays announced after its last client is gone."""

RESERVED = 8
"""One eighth of what another host stores is free for root alone."""


class Cost(NamedTuple):
    """What another host charges for a pattern: lines, and bytes."""

    lines: int = 0
    bytes: int = 0


LIMITS = Cost(MAX_PATTERNS, MAX_PATTERN_BYTES)
"""What another host stores for all clients of this one."""


@dataclass(slots=True)
class _Entry:
    """One pattern: the clients that have it, and the lines that it needs."""

    lines: tuple[Line, ...]
    cost: Cost
    clients: dict[int, int] = field(default_factory=dict)
    """The user of each client."""
    inherited: bool = False
    """Whether a client had it before this link asked the bus, so that earlier messages may be missing."""


@dataclass(slots=True)
class _Held:
    """The patterns of the clients of one user, the oldest first, each with the number of these clients."""

    patterns: dict[bytes, int] = field(default_factory=dict)
    lines: int = 0
    bytes: int = 0


class LocalInterest:
    """Counts clients for each pattern.

    Other hosts store only so much for this one. When that is full, the user with the most makes room for one with less: so each of *n*
    users has at least one *n*-th, in whatever order they come.
    """

    def __init__(self, rules: Rules, charged: Callable[[int], int] = int) -> None:
        """*charged* returns the user that is charged for a uid."""
        self._rules = rules
        self._charged = charged
        self._entries: dict[bytes, _Entry] = {}
        self._by_client: dict[int, set[bytes]] = {}
        self._by_line: dict[Line, set[bytes]] = {}
        self._ending: dict[bytes, float | None] = {}
        """Patterns without clients, the oldest first, each with the time at which `expire` forgets it; None until `expire` saw it."""
        self._by_user: dict[int, _Held] = {}
        self._all = _Held()
        """What all entries need, each once."""
        self.additions = 0
        """How many patterns of clients were added."""
        self.is_inheriting = True
        """Whether reported patterns are those that clients had before."""
        self.changed: set[Line] = set()
        """Lines that may have become wanted, or unwanted, since the caller last cleared it."""

    @property
    def next_end(self) -> float | None:
        """When `expire`, after it was called for all changes, has something to do, in seconds."""
        return None if self.is_inheriting else next(iter(self._ending.values()), None)

    def add(self, client: int, uid: int, pattern: bytes) -> list[bytes]:
        """Note that *client* of the user *uid* has *pattern*. Return the patterns that clients have and that are not announced for them:
        those of the users with the most, which made room, or *pattern* itself.
        """
        uid = self._charged(uid)
        entry = self._entries.get(pattern)
        removed: list[bytes] = []
        if entry is None:
            lines = wanted_lines(self._rules, pattern)
            if not lines:
                return []
            cost = cost_of(lines)
            removed, has_space = self._make_space(uid, cost)
            if not has_space:
                return [*removed, pattern]
            entry = self._entries[pattern] = _Entry(lines, cost, inherited=self.is_inheriting)
            self._charge(self._all, cost, 1)
            for line in lines:
                self._by_line.setdefault(line, set()).add(pattern)
                self.changed.add(line)
        self.additions += 1
        if client not in entry.clients:
            self._hold(entry, client, uid, pattern)
        self._ending.pop(pattern, None)
        return removed

    def remove(self, client: int, pattern: bytes) -> None:
        """Note that *client* has *pattern* no longer."""
        entry = self._entries.get(pattern)
        if entry is None or client not in entry.clients:
            return
        self._release(entry, client, pattern)
        if not entry.clients:
            self._ending[pattern] = None

    def remove_client(self, client: int) -> None:
        """Note that *client* has disconnected."""
        for pattern in list(self._by_client.get(client, ())):
            self.remove(client, pattern)

    def remove_all(self) -> None:
        """Note that nothing is known about the clients any more, until the patterns that they have were added again."""
        self.is_inheriting = True
        for client in list(self._by_client):
            self.remove_client(client)

    def expire(self, now: float) -> None:
        """Forget the patterns whose last client has been gone for a second; *now* is in seconds.

        Nothing is forgotten while `is_inheriting`: the clients have yet to be reported, and need notices of lost messages.
        """
        if self.is_inheriting:
            return
        for pattern, end in list(self._ending.items()):
            if end is None:
                self._ending[pattern] = now + WITHDRAW_AFTER
            elif end <= now:
                self._forget(pattern)

    def is_wanted(self, line: Line) -> bool:
        """Return whether a local pattern needs *line*."""
        return line in self._by_line

    def lines(self, pattern: bytes) -> tuple[Line, ...]:
        """Return the lines that the local *pattern* needs."""
        entry = self._entries.get(pattern)
        return entry.lines if entry is not None else ()

    def patterns(self, line: Line) -> list[bytes]:
        """Return the local patterns that need *line*, sorted."""
        return sorted(self._by_line.get(line, ()))

    def inherited(self, line: Line) -> list[bytes]:
        """Return those of `patterns` whose clients may have missed messages before this link ran."""
        return [pattern for pattern in self.patterns(line) if self._entries[pattern].inherited]

    def all_patterns(self) -> list[bytes]:
        """Return all local patterns that concern other hosts, sorted."""
        return sorted(self._entries)

    def _make_space(self, uid: int, cost: Cost) -> tuple[list[bytes], bool]:
        """Let the users with the most make room for a pattern of *uid*. Return the patterns that they lose, and whether it fits."""
        removed: list[bytes] = []
        while (short := self._shortage(uid, cost)) is not None:
            if self._ending:
                self._forget(next(iter(self._ending)))
                continue
            most = max(self._by_user, key=lambda user: self._part(user)[short], default=uid)
            if self._part(most)[short] <= self._part(uid)[short] + cost[short]:
                return removed, False
            pattern = next(reversed(self._by_user[most].patterns))
            entry = self._entries[pattern]
            removed.append(pattern)
            for client in [client for client, user in entry.clients.items() if user == most]:
                self._release(entry, client, pattern)
            if not entry.clients:
                self._forget(pattern)
        return removed, True

    def _shortage(self, uid: int, cost: Cost) -> int | None:
        """Return the place in `Cost` of the limit that a pattern of *uid* would exceed, or None."""
        used = Cost(self._all.lines, self._all.bytes)
        for place, (limit, taken, more) in enumerate(zip(LIMITS, used, cost, strict=True)):
            if taken + more > (limit if uid == 0 else limit - limit // RESERVED):
                return place
        return None

    def _part(self, uid: int) -> Cost:
        """Return what is compared between users: what *uid* has, of root less what is reserved for it."""
        held = self._by_user.get(uid)
        part = Cost() if held is None else Cost(held.lines, held.bytes)
        return Cost(*(used - limit // RESERVED for used, limit in zip(part, LIMITS, strict=True))) if uid == 0 else part

    def _hold(self, entry: _Entry, client: int, uid: int, pattern: bytes) -> None:
        """Note that *client* has the pattern of *entry*. Each user that has it is charged."""
        entry.clients[client] = uid
        self._by_client.setdefault(client, set()).add(pattern)
        held = self._by_user.setdefault(uid, _Held())
        clients = held.patterns.get(pattern, 0)
        held.patterns[pattern] = clients + 1
        if not clients:
            self._charge(held, entry.cost, 1)

    def _release(self, entry: _Entry, client: int, pattern: bytes) -> None:
        """Note that *client* does not have the pattern of *entry* any more."""
        uid = entry.clients.pop(client)
        self._by_client[client].remove(pattern)
        if not self._by_client[client]:
            del self._by_client[client]
        held = self._by_user[uid]
        held.patterns[pattern] -= 1
        if not held.patterns[pattern]:
            del held.patterns[pattern]
            self._charge(held, entry.cost, -1)
        if not held.patterns:
            del self._by_user[uid]

    def _forget(self, pattern: bytes) -> None:
        """Remove the entry of *pattern*, which has no clients."""
        self._ending.pop(pattern, None)
        entry = self._entries.pop(pattern)
        self._charge(self._all, entry.cost, -1)
        for line in entry.lines:
            self._by_line[line].remove(pattern)
            if not self._by_line[line]:
                del self._by_line[line]
            self.changed.add(line)

    @staticmethod
    def _charge(held: _Held, cost: Cost, sign: int) -> None:
        held.lines += sign * cost.lines
        held.bytes += sign * cost.bytes


def cost_of(lines: Iterable[Line]) -> Cost:
    """Return what *lines* need at another host, by the way in which it counts."""
    patterns = {line.pattern for line in lines}
    return Cost(len(patterns), sum(len(each) + COST for each in patterns))


def wanted_lines(rules: Rules, pattern: bytes) -> tuple[Line, ...]:
    """Return the lines of interest for a local *pattern*: its intersection with each import, for the hosts that it names.

    Without a shared import, only a pattern whose first segment is literally ``host`` has any.
    """
    lines: set[Line] = set()
    for rule in rules.imports:
        origins, wanted = (b"*", pattern) if rule.shared else _split_hosted(pattern)
        both = intersection(wanted, rule.keys) if wanted is not None else None
        if both is not None:
            lines.update(Line(each, both) for each in _origins(rules, rule, origins))
    return tuple(sorted(lines))


def _split_hosted(pattern: bytes) -> tuple[bytes, bytes | None]:
    """Return the segment for the origin in ``host/<origin>/<key pattern>``, and the pattern for keys there, or None."""
    if not pattern.startswith(HOSTED_HEAD):
        return b"", None
    origins, slash, rest = pattern[len(HOSTED_HEAD) :].partition(b"/")
    if not origins and not slash:
        return b"*", b""
    return origins, rest if slash else None


def _origins(rules: Rules, rule: Import, origins: bytes) -> list[bytes]:
    """Return the origins to name in lines: those of *rule* that the segment *origins* matches, or the segment itself."""
    before, star, after = origins.partition(b"*")
    segment = Line(before + star, b"")
    if after.strip(b"*") or not is_origins(segment.origins):
        return []
    if rule.hosts is None:
        return [] if segment.origins == rules.host.encode() else [segment.origins]
    return [host.encode() for host in sorted(rule.hosts) if host != rules.host and segment.concerns(host)]
