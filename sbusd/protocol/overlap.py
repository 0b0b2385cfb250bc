"""Which keys two patterns have in common. Spec: sbus-protocol(7) §3."""

from __future__ import annotations

from functools import lru_cache

from sbusd.protocol.keys import KeySpace, Reach

_KEYS = KeySpace()


def is_matchable(pattern: bytes) -> bool:
    """Return whether any key matches *pattern*."""
    return b"\0" not in pattern and Reach(_KEYS, pattern).touches(b"")


@lru_cache(maxsize=4_096)
def intersection(one: bytes, other: bytes) -> bytes | None:
    """Return the pattern that matches exactly the keys that both patterns match, or None if there are none."""
    if not is_matchable(one) or not is_matchable(other):
        return None
    (first, first_open), (second, second_open) = split_pattern(one), split_pattern(other)
    # An open pattern matches keys with at least one segment more than it names.
    if len(first) < len(second):
        first, first_open, second, second_open = second, second_open, first, first_open
    if (len(first) > len(second) and not second_open) or (len(first) == len(second) and first_open is not second_open):
        return None
    segments = list(first)
    for position, segment in enumerate(second):
        both = _both(first[position], segment)
        if both is None:
            return None
        segments[position] = both
    pattern = b"".join([segment + b"/" for segment in segments]) if first_open else b"/".join(segments)
    # Wildcards do not match the head of a reserved key: both have to spell it out.
    reserved = _KEYS.namespace(pattern) is not None
    return None if reserved and not (_KEYS.namespace(one) and _KEYS.namespace(other)) else pattern


def covers(allowed: bytes, pattern: bytes) -> bool:
    """Return whether *pattern* matches a key, and *allowed* matches every key that *pattern* matches."""
    both = intersection(allowed, pattern)
    # The intersection with itself spells the pattern as intersections are: with one star for several.
    return both is not None and both == intersection(pattern, pattern)


def split_pattern(pattern: bytes) -> tuple[list[bytes], bool]:
    """Return the segments of *pattern*, each with at most one star, and whether any further segments may follow."""
    segments = [head + star for head, star, _ in (segment.partition(b"*") for segment in pattern.split(b"/"))]
    if segments[-1]:
        return segments, False
    return segments[:-1], True


def _both(one: bytes, other: bytes) -> bytes | None:
    """Return the segment that matches what both segments match."""
    if not one.endswith(b"*"):
        one, other = other, one
    if not one.endswith(b"*"):
        return one if one == other else None
    if other.endswith(b"*"):
        longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
        return longer if longer.startswith(shorter[:-1]) else None
    return other if other.startswith(one[:-1]) else None
