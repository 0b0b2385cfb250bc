"""What other hosts want of this host: their patterns, and the subscriptions on the local bus that follow from them.

A pattern waits until the local bus has acknowledged its subscriptions; then `apply` makes it count for messages.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sbusd.link.patterns import PatternIndex, intersection
from sbusd.link.ports import LocalBus
from sbusd.link.rules import Export, Rules

MAX_PATTERNS = 4_096
"""Patterns that one host can want."""

MAX_PATTERN_BYTES = 1 << 20
"""Bytes of the patterns that one host can want, with COST for each."""

MAX_ALL_PATTERNS = 16_000
MAX_ALL_BYTES = 32 << 20
"""Bounds for all hosts together. Each host can use at most as much as it leaves free."""

COST = 128
"""Bytes charged for a pattern besides its own."""


@dataclass(slots=True)
class _Receiver:
    """What one host wants; *waiting* are those of its patterns that do not count yet."""

    patterns: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    """With the subscriptions on the local bus that each needs."""
    waiting: set[bytes] = field(default_factory=set)
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

    def patterns(self, host: str) -> frozenset[bytes]:
        """Return what *host* wants, in effect or not yet."""
        return frozenset(self._receivers[host].patterns) if host in self._receivers else frozenset()

    def want(self, host: str, pattern: bytes) -> bool:
        """Store *pattern* for *host* and subscribe to its part that may leave. Return False if that exceeds the bounds."""
        receiver = self._receivers.setdefault(host, _Receiver())
        if pattern in receiver.patterns:
            return True
        cost = len(pattern) + COST
        free_patterns, free_bytes = MAX_ALL_PATTERNS - self._count, MAX_ALL_BYTES - self._bytes
        if len(receiver.patterns) >= min(MAX_PATTERNS, free_patterns) or receiver.bytes + cost > min(MAX_PATTERN_BYTES, free_bytes):
            return False
        receiver.bytes += cost
        self._bytes += cost
        self._count += 1
        exported = {intersection(pattern, rule.keys) for rule in self._rules.exports if rule.permits(host)}
        receiver.patterns[pattern] = tuple(sorted(each for each in exported if each is not None))
        receiver.waiting.add(pattern)
        for each in receiver.patterns[pattern]:
            self._stored[each] += 1
            if self._stored[each] == 1:
                self._bus.subscribe(each)
        return True

    def withdraw(self, host: str, pattern: bytes) -> None:
        """Remove *pattern* of *host*, if it is stored."""
        receiver = self._receivers.get(host)
        if receiver is None or pattern not in receiver.patterns:
            return
        for each in receiver.patterns.pop(pattern):
            self._stored[each] -= 1
            if not self._stored[each]:
                del self._stored[each]
                self._bus.unsubscribe(each)
        cost = len(pattern) + COST
        receiver.bytes -= cost
        self._bytes -= cost
        self._count -= 1
        if pattern in receiver.waiting:
            receiver.waiting.remove(pattern)
        else:
            self._leave(host, pattern)
        if not receiver.patterns:
            del self._receivers[host]

    def forget(self, host: str) -> None:
        """Remove everything that *host* wants."""
        for pattern in self.patterns(host):
            self.withdraw(host, pattern)

    def apply(self, host: str, patterns: set[bytes]) -> None:
        """Make those of *patterns* count that *host* still waits for; earlier flows do not include them."""
        receiver = self._receivers.get(host)
        if receiver is None:
            return
        for pattern in patterns & receiver.waiting:
            receiver.waiting.remove(pattern)
            if receiver.patterns[pattern]:
                self._holders.setdefault(pattern, set()).add(host)
                self._index.add(pattern)
                self._joins += 1
                self._generations[pattern] = self._joins
                self.version += 1

    def rejoin(self, host: str) -> None:
        """Treat everything that *host* wants as new, but keep the subscriptions."""
        receiver = self._receivers.get(host)
        if receiver is not None:
            for pattern in receiver.patterns.keys() - receiver.waiting:
                receiver.waiting.add(pattern)
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
