"""What the clients of this host want of other hosts: their patterns, as lines of interest."""

from __future__ import annotations

from dataclasses import dataclass, field

from sbusd.link.frames import Line, is_origins
from sbusd.link.rules import Import, Rules
from sbusd.protocol.overlap import intersection

HOSTED_HEAD = b"host/"
"""``host/<origin>/<key>`` is the key of a message of another host."""

WITHDRAW_AFTER = 1.0
"""Seconds for which a pattern stays announced after its last client is gone."""

MAX_PATTERNS = 4_096
MAX_PATTERN_BYTES = 1 << 20
"""Bounds for the patterns of all local clients. The clients of one user can use at most as much as they leave free."""

RESERVED = 8
"""One eighth is free for root alone."""


@dataclass(slots=True)
class _Entry:
    """One pattern: the clients that have it, and the lines that it needs. *until*: when to withdraw it, in seconds."""

    lines: tuple[Line, ...]
    payer: int
    """The user that is charged for it: one of those of the clients, or of the last one."""
    clients: dict[int, int] = field(default_factory=dict)
    """The user of each client."""
    until: float | None = None
    inherited: bool = False
    """Whether a client had it before this link asked the bus, so that earlier messages may be missing."""


@dataclass(slots=True)
class _Used:
    """What the clients of one user are charged for."""

    patterns: int = 0
    bytes: int = 0


class LocalInterest:
    """Counts clients for each pattern. A user is charged for a pattern once, and not if another one already is."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._entries: dict[bytes, _Entry] = {}
        self._by_client: dict[int, set[bytes]] = {}
        self._by_line: dict[Line, set[bytes]] = {}
        self._ending: set[bytes] = set()
        self._bytes = 0
        self._used: dict[int, _Used] = {}
        self.additions = 0
        """How many patterns of clients were added."""
        self.is_inheriting = True
        """Whether reported patterns are those that clients had before."""
        self.changed: set[Line] = set()
        """Lines that may have become wanted, or unwanted, since the caller last cleared it."""

    @property
    def next_end(self) -> float | None:
        """When `expire` has something to do, in seconds."""
        return min((end for each in self._ending if (end := self._entries[each].until) is not None), default=None)

    def add(self, client: int, uid: int, pattern: bytes) -> bool:
        """Note that *client* of the user *uid* has *pattern*. Return False if that exceeds the bounds; then it is not announced."""
        entry = self._entries.get(pattern)
        if entry is None:
            lines = wanted_lines(self._rules, pattern)
            if not lines:
                return True
            if not self._has_space(uid, len(pattern)):
                return False
            entry = self._entries[pattern] = _Entry(lines, uid, inherited=self.is_inheriting)
            self._bytes += len(pattern)
            self._charge(uid, 1, len(pattern))
            for line in lines:
                self._by_line.setdefault(line, set()).add(pattern)
                self.changed.add(line)
        self.additions += 1
        entry.clients[client] = uid
        self._move(entry, pattern)
        entry.until = None
        self._ending.discard(pattern)
        self._by_client.setdefault(client, set()).add(pattern)
        return True

    def remove(self, client: int, pattern: bytes, now: float) -> None:
        """Note that *client* has *pattern* no longer; *now* is in seconds."""
        entry = self._entries.get(pattern)
        if entry is None or client not in entry.clients:
            return
        del entry.clients[client]
        self._move(entry, pattern)
        self._by_client[client].discard(pattern)
        if not self._by_client[client]:
            del self._by_client[client]
        if not entry.clients:
            entry.until = now + WITHDRAW_AFTER
            self._ending.add(pattern)

    def remove_client(self, client: int, now: float) -> None:
        """Note that *client* has disconnected."""
        for pattern in list(self._by_client.get(client, ())):
            self.remove(client, pattern, now)

    def remove_all(self, now: float) -> None:
        """Note that nothing is known about the clients any more."""
        for client in list(self._by_client):
            self.remove_client(client, now)

    def expire(self, now: float) -> None:
        """Forget the patterns whose last client has been gone for a second."""
        for pattern in [each for each in self._ending if (end := self._entries[each].until) is not None and end <= now]:
            self._ending.remove(pattern)
            entry = self._entries.pop(pattern)
            self._bytes -= len(pattern)
            self._charge(entry.payer, -1, -len(pattern))
            for line in entry.lines:
                self._by_line[line].remove(pattern)
                if not self._by_line[line]:
                    del self._by_line[line]
                self.changed.add(line)

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

    def _has_space(self, uid: int, size: int) -> bool:
        """Return whether the user *uid* may add a pattern of *size* bytes."""
        used, part = self._used.get(uid, _Used()), 0 if uid == 0 else 1
        patterns = MAX_PATTERNS - part * MAX_PATTERNS // RESERVED - len(self._entries)
        free = MAX_PATTERN_BYTES - part * MAX_PATTERN_BYTES // RESERVED - self._bytes
        return used.patterns < patterns and used.bytes + size <= free - size

    def _move(self, entry: _Entry, pattern: bytes) -> None:
        """Charge another user for *pattern* if the one that is charged has no client with it any more."""
        users = entry.clients.values()
        if users and entry.payer not in users:
            self._charge(entry.payer, -1, -len(pattern))
            entry.payer = next(iter(users))
            self._charge(entry.payer, 1, len(pattern))

    def _charge(self, uid: int, patterns: int, size: int) -> None:
        used = self._used.setdefault(uid, _Used())
        used.patterns += patterns
        used.bytes += size
        if not used.patterns:
            del self._used[uid]


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
