"""Patterns and key prefixes: could a pattern reach a key that begins so, and does it reach no other? Spec: sbus-protocol(7) §3.

A policy speaks of key prefixes, a subscription of patterns with wildcards. A rule that closes a prefix must close every pattern
that could reach under it, and one that opens it only those that reach nothing else.
"""

from __future__ import annotations

from sbusd.protocol.keys import KeySpace


class Reach:
    """What one pattern can reach. It is cut up once, so that a question costs what the prefix is long, however long the pattern."""

    def __init__(self, keyspace: KeySpace, pattern: bytes) -> None:
        """Look at *pattern*, any bytes without NUL."""
        self._keyspace = keyspace
        self._head = pattern.partition(b"*")[0]
        self._wanted = pattern.split(keyspace.separator)
        self._takes_rest = not self._wanted[-1]
        if self._takes_rest:
            self._wanted.pop()
        namespace = keyspace.namespace(pattern)
        guard = namespace.guard if namespace else 0
        # Bytes behind a star can never match, and the guarded segments of a reserved key must be spelled out.
        self._takes_nothing = (
            not all(_could_take(want, b"") for want in self._wanted)
            or any(b"*" in want for want in self._wanted[:guard])
            or (self._takes_rest and len(self._wanted) < guard)
        )
        self._is_ordinary = namespace is None

    def touches(self, prefix: bytes) -> bool:
        """Return whether the pattern takes any key that begins with *prefix*, any bytes without NUL."""
        if not (self._head.startswith(prefix) or prefix.startswith(self._head)):
            # What almost every question ends with, and without cutting anything up.
            return False
        if self._takes_nothing or (self._is_ordinary and self._keyspace.namespace(prefix) is not None):
            return False
        *whole, begun = prefix.split(self._keyspace.separator)
        if len(self._wanted) <= len(whole):
            return self._takes_rest and all(map(_takes, self._wanted, whole))
        return all(map(_takes, self._wanted, whole)) and _could_take(self._wanted[len(whole)], begun)

    def is_within(self, prefix: bytes) -> bool:
        """Return whether every key that the pattern takes begins with *prefix*: what stands before its first wildcard does."""
        return self._head.startswith(prefix)


def _takes(want: bytes, segment: bytes) -> bool:
    """Return whether one segment of a pattern that can take something takes this one of a key."""
    before, star, _ = want.partition(b"*")
    return segment.startswith(before) if star else segment == want


def _could_take(want: bytes, begun: bytes) -> bool:
    """Return whether one segment of a pattern takes any segment that begins with *begun*."""
    before, star, after = want.partition(b"*")
    if not star:
        return want.startswith(begun)
    return not after.strip(b"*") and (before.startswith(begun) or begun.startswith(before))
