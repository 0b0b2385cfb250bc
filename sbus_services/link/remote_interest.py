"""What other hosts want of this host: their patterns, and the subscriptions on the local bus that follow from them.

A pattern waits until the local bus has acknowledged its subscriptions; then `apply` makes it count for messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sbus.protocol.keys import intersection
from sbus.protocol.pattern_index import PatternIndex
from sbus_services.link.frames import Line
from sbus_services.link.ports import LocalBus
from sbus_services.link.rules import Export, Rules

MAX_PATTERNS = 4_096
"""Lines that one host can want."""

MAX_PATTERN_BYTES = 1 << 20
"""Bytes of the lines that one host can want, with COST for each."""

MAX_ALL_PATTERNS = 16_000
MAX_ALL_BYTES = 32 << 20
"""Bounds for all hosts together. Each host can use at most as much as it leaves free."""

COST = 128
"""Bytes charged for a line besides its pattern."""


@dataclass(slots=True)
class _Pattern:
    """One pattern of a host: the origins of its lines, and the subscriptions on the local bus that it needs."""

    origins: set[bytes]
    subscriptions: tuple[bytes, ...]


@dataclass(slots=True)
class _Receiver:
    """What one host wants; *waiting* are those of its patterns with a line that does not count yet."""

    patterns: dict[bytes, _Pattern] = field(default_factory=dict)
    waiting: set[bytes] = field(default_factory=set)
    lines: int = 0
    bytes: int = 0


class RemoteInterest:
    """The patterns of all hosts."""

    def __init__(self, rules: Rules, bus: LocalBus) -> None:
        self._rules = rules
        self._bus = bus
        self._receivers: dict[str, _Receiver] = {}
        self._stored: Counter[bytes] = Counter()
        self._index = PatternIndex()
        self._holders: dict[bytes, set[str]] = {}
        self._generations: dict[bytes, int] = {}
        self._count = 0
        self._bytes = 0
        self._joins = 0
        self.version = 0
        """Differs after every change of what `match` returns."""

    def lines(self, host: str) -> set[Line]:
        """Return what *host* wants, in effect or not yet."""
        receiver = self._receivers.get(host)
        if receiver is None:
            return set()
        return {Line(origins, pattern) for pattern, stored in receiver.patterns.items() for origins in stored.origins}

    def count(self, host: str) -> int:
        """Return the number of `lines`."""
        receiver = self._receivers.get(host)
        return receiver.lines if receiver is not None else 0

    def want(self, host: str, line: Line) -> bool:
        """Store *line* for *host* and subscribe to its part that may leave. Return False if that exceeds the bounds."""
        receiver = self._receivers.setdefault(host, _Receiver())
        stored = receiver.patterns.get(line.pattern)
        if stored is not None and line.origins in stored.origins:
            return True
        cost = len(line.pattern) + COST
        free_lines, free_bytes = MAX_ALL_PATTERNS - self._count, MAX_ALL_BYTES - self._bytes
        if receiver.lines >= min(MAX_PATTERNS, free_lines) or receiver.bytes + cost > min(MAX_PATTERN_BYTES, free_bytes):
            return False
        self._charge(receiver, 1, cost)
        # A further line of the same pattern joins too: it counts the messages of flows from now on.
        receiver.waiting.add(line.pattern)
        if stored is not None:
            stored.origins.add(line.origins)
            return True
        exported = {intersection(line.pattern, rule.keys) for rule in self._rules.exports if rule.permits(host)}
        subscriptions = tuple(sorted(each for each in exported if each is not None))
        receiver.patterns[line.pattern] = _Pattern({line.origins}, subscriptions)
        for each in subscriptions:
            self._stored[each] += 1
            if self._stored[each] == 1:
                self._bus.subscribe(each)
        return True

    def withdraw(self, host: str, line: Line) -> bool:
        """Remove *line* of *host*, if it is stored. Return whether *host* has no other line with this pattern."""
        receiver = self._receivers.get(host)
        stored = receiver.patterns.get(line.pattern) if receiver is not None else None
        if receiver is None or stored is None:
            return True
        if line.origins not in stored.origins:
            return False
        stored.origins.remove(line.origins)
        self._charge(receiver, -1, -len(line.pattern) - COST)
        if stored.origins:
            return False
        del receiver.patterns[line.pattern]
        for each in stored.subscriptions:
            self._stored[each] -= 1
            if not self._stored[each]:
                del self._stored[each]
                self._bus.unsubscribe(each)
        receiver.waiting.discard(line.pattern)
        self._leave(host, line.pattern)
        if not receiver.patterns:
            del self._receivers[host]
        return True

    def forget(self, host: str) -> None:
        """Remove everything that *host* wants."""
        for line in sorted(self.lines(host)):
            self.withdraw(host, line)

    def apply(self, host: str, patterns: set[bytes]) -> None:
        """Make those of *patterns* count that *host* still waits for; earlier flows do not include them."""
        receiver = self._receivers.get(host)
        if receiver is None:
            return
        for pattern in patterns & receiver.waiting:
            receiver.waiting.remove(pattern)
            if receiver.patterns[pattern].subscriptions:
                self._holders.setdefault(pattern, set()).add(host)
                self._index.add(pattern)
                self._joins += 1
                self._generations[pattern] = self._joins
                self.version += 1

    def rejoin(self, host: str) -> None:
        """Treat everything that *host* wants as new, but keep the subscriptions."""
        receiver = self._receivers.get(host)
        if receiver is not None:
            receiver.waiting.update(receiver.patterns)
            for pattern in receiver.patterns:
                self._leave(host, pattern)

    def waiting(self, host: str) -> set[bytes]:
        """Return the patterns of *host* that do not count yet."""
        return set(self._receivers[host].waiting) if host in self._receivers else set()

    def subscriptions(self) -> list[bytes]:
        """Return the patterns that the local bus has to store for other hosts."""
        return list(self._stored)

    def match(self, key: bytes, export: Export) -> list[tuple[str | None, list[bytes]]]:
        """Return for whom a message that *export* lets out is wanted: each target, and the names of the patterns that match.

        The target None means all hosts that want it. The names differ between generations of a pattern.
        """
        found = self._index.match(key)
        if not found:
            return []
        if export.hosts is None:
            return [(None, [self._name(pattern) for pattern in found])]
        by_host: dict[str, list[bytes]] = {}
        for pattern in found:
            for host in self._holders[pattern]:
                if host in export.hosts:
                    by_host.setdefault(host, []).append(self._name(pattern))
        return [*by_host.items()]

    def _charge(self, receiver: _Receiver, lines: int, cost: int) -> None:
        receiver.lines += lines
        receiver.bytes += cost
        self._count += lines
        self._bytes += cost

    def _name(self, pattern: bytes) -> bytes:
        return b"%b\0%d" % (pattern, self._generations[pattern])

    def _leave(self, host: str, pattern: bytes) -> None:
        """Stop *pattern* from counting for *host*."""
        holders = self._holders.get(pattern)
        if holders is None or host not in holders:
            return
        holders.remove(host)
        self.version += 1
        if not holders:
            del self._holders[pattern], self._generations[pattern]
            self._index.remove(pattern)
