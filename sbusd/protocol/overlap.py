"""Patterns and key prefixes: can a pattern match a key with the prefix, and does it match only such keys? Spec: sbus-protocol(7) §3.

A policy has key prefixes, a subscription has patterns with wildcards. A rule that denies a prefix must deny every pattern that can match
a key with the prefix. A rule that permits a prefix must permit only patterns that match no other key.
"""

from __future__ import annotations

from sbusd.protocol.keys import KeySpace


class Reach:
    """The keys that one pattern can match. The pattern is split once, so the cost of a check depends only on the prefix."""

    def __init__(self, keyspace: KeySpace, pattern: bytes) -> None:
        """*pattern* is any bytes without NUL."""
        self._keyspace = keyspace
        self._head = pattern.partition(b"*")[0]
        self._wanted = pattern.split(keyspace.separator)
        self._matches_rest = not self._wanted[-1]
        if self._matches_rest:
            self._wanted.pop()
        namespace = keyspace.namespace(pattern)
        guard = namespace.guard if namespace else 0
        # Bytes after a star can never match, and the guarded segments of a reserved key must be spelled out.
        self._matches_nothing = (
            not all(_can_match(want, b"") for want in self._wanted)
            or any(b"*" in want for want in self._wanted[:guard])
            or (self._matches_rest and len(self._wanted) < guard)
        )
        self._is_ordinary = namespace is None

    def touches(self, prefix: bytes) -> bool:
        """Return whether the pattern matches any key that begins with *prefix*, any bytes without NUL."""
        if not (self._head.startswith(prefix) or prefix.startswith(self._head)):
            # Nearly every check ends here, without splitting the prefix.
            return False
        if self._matches_nothing or (self._is_ordinary and self._keyspace.namespace(prefix) is not None):
            return False
        *whole, begun = prefix.split(self._keyspace.separator)
        if len(self._wanted) <= len(whole):
            return self._matches_rest and all(map(_matches, self._wanted, whole))
        return all(map(_matches, self._wanted, whole)) and _can_match(self._wanted[len(whole)], begun)

    def is_within(self, prefix: bytes) -> bool:
        """Return whether every key that the pattern matches begins with *prefix*: its part before the first wildcard does."""
        return self._head.startswith(prefix)


def _matches(want: bytes, segment: bytes) -> bool:
    """Return whether a segment of a pattern, which can match at all, matches *segment* of a key."""
    before, star, _ = want.partition(b"*")
    return segment.startswith(before) if star else segment == want


def _can_match(want: bytes, begun: bytes) -> bool:
    """Return whether a segment of a pattern matches any segment that begins with *begun*."""
    before, star, after = want.partition(b"*")
    if not star:
        return want.startswith(begun)
    return not after.strip(b"*") and (before.startswith(begun) or begun.startswith(before))
