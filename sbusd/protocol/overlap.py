"""Patterns and key prefixes: could a pattern reach a key that begins so, and does it reach no other? Spec: sbus-protocol(7) §3.

A policy speaks of key prefixes, a subscription of patterns with wildcards. A rule that closes a prefix must close every pattern
that could reach under it, and one that opens it only those that reach nothing else.
"""

from __future__ import annotations

from sbusd.protocol.keys import KeySpace


def could_reach(keyspace: KeySpace, pattern: bytes, prefix: bytes) -> bool:
    """Return whether there is a key that begins with *prefix* and that *pattern* takes. Both are any bytes without NUL."""
    namespace = keyspace.namespace(pattern)
    if namespace is None and keyspace.namespace(prefix) is not None:
        # No wildcard reaches a reserved key.
        return False
    wanted = pattern.split(keyspace.separator)
    takes_rest = not wanted[-1]
    if takes_rest:
        wanted.pop()
    if namespace is not None and (
        any(b"*" in want for want in wanted[: namespace.guard]) or (takes_rest and len(wanted) < namespace.guard)
    ):
        return False
    *whole, begun = prefix.split(keyspace.separator)
    if len(wanted) <= len(whole) and not takes_rest:
        return False
    return (
        all(_takes(want, segment) for want, segment in zip(wanted, whole, strict=False))
        and all(_could_take(want, begun) for want in wanted[len(whole) : len(whole) + 1])
        and all(_could_take(want, b"") for want in wanted[len(whole) + 1 :])
    )


def is_within(pattern: bytes, prefix: bytes) -> bool:
    """Return whether every key that *pattern* takes begins with *prefix*: what stands before its first wildcard does."""
    return pattern.partition(b"*")[0].startswith(prefix)


def _takes(want: bytes, segment: bytes) -> bool:
    """Return whether one segment of a pattern takes this one of a key."""
    before, star, _ = want.partition(b"*")
    return _could_take(want, b"") and (segment.startswith(before) if star else segment == want)


def _could_take(want: bytes, begun: bytes) -> bool:
    """Return whether one segment of a pattern takes any segment that begins with *begun*."""
    before, star, after = want.partition(b"*")
    if not star:
        return want.startswith(begun)
    return not after.strip(b"*") and (before.startswith(begun) or begun.startswith(before))
