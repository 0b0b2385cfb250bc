"""Routing keys and patterns. Spec: sbus-protocol(7) §3.

Rules, for a bus whose separator is ``/``:

- a key is bytes without NUL, split into segments by the separator; a ``*`` in a key is an ordinary byte;
- a ``*`` in a pattern matches the rest of its segment, which may be empty; bytes after it in the same segment can never match;
- a separator at the end of a pattern also matches any further bytes, or none; the empty pattern matches everything;
- a key that begins with ``!/`` is reserved: a pattern must spell out its first segments, as many as its namespace requires
  (the *guard*). In the original server ``SUB ""`` and ``SUB */cred/`` can read the secrets of all users; here no wildcard can.

:func:`pattern_matches` is the reference that the compiled router is tested against.

A policy has key prefixes, and a subscription has patterns with wildcards. :class:`Reach` decides whether a pattern can match a key with a
prefix, and whether it matches only such keys. A rule that denies a prefix must deny every pattern that can match a key with the prefix. A
rule that permits a prefix must permit only patterns that match no other key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

from sbus.protocol.errors import ErrorCode, ProtocolError

MAX_KEY_BYTES = 4_096
"""Default maximum length of a key or pattern in bytes: PATH_MAX, so that the path of any file can be a key. The cost of a match grows with
the key's depth."""

_RESERVED_HEAD = b"!/"
"""The prefix of every reserved key."""

SECRET_HEAD = b"!/cred/"
"""The prefix of every private key, and of every credential prefix."""

SECRET_SEGMENTS = 5
"""Segments before the rest of a private key: ``!``, ``cred``, gid, uid, pid."""

ADDRESS_HEAD = b"!/conn/"
"""The prefix of every connection's address."""

EVENT_HEAD = b"!/event/"
"""The prefix of the key of every event of the bus."""

# Limited, because int() is slow for very long numbers: a connection number has at most 20 digits.
_ADDRESS = re.compile(re.escape(ADDRESS_HEAD) + rb"([0-9]{1,20})/")


@dataclass(frozen=True, slots=True)
class Namespace:
    """A part of the reserved keys.

    ``head`` is the prefix of its keys. ``guard`` is the number of leading segments that a pattern must spell out to match one, and the
    minimum number of separators in a key. ``public`` says whether clients may publish to them.
    """

    head: bytes
    guard: int
    public: bool


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The rules for keys on one bus: its separator, and its credential prefix, if any.

    ``separator`` is ``b"/"``, or ``b"."`` for the earlier revision of the protocol, which reserves nothing.
    ``prefix`` is empty, or ``!/cred/<gid>/<uid>/<pid>`` for each server in front of this one, joined by ``/``.
    ``is_guarded``: wildcards do not match reserved keys; False for the patterns of taps.
    """

    separator: bytes = b"/"
    prefix: bytes = b""
    is_guarded: bool = True
    namespaces: tuple[Namespace, ...] = field(init=False, repr=False, compare=False)
    """The reserved namespaces; a key belongs to the first whose head it begins with. Spec: sbus-protocol(7) §5."""

    def __post_init__(self) -> None:
        # Computed once, not for each SUB.
        object.__setattr__(self, "namespaces", self._namespaces())

    def _namespaces(self) -> tuple[Namespace, ...]:
        """Return the reserved namespaces."""
        if self.separator != b"/" or not self.is_guarded:
            return ()
        levels = self.prefix.count(SECRET_HEAD) + 1
        return (
            Namespace(SECRET_HEAD, SECRET_SEGMENTS * levels, public=True),
            Namespace(ADDRESS_HEAD, 3, public=True),
            Namespace(EVENT_HEAD, 2, public=False),
            Namespace(_RESERVED_HEAD, 2, public=False),
        )

    def namespace(self, key: bytes) -> Namespace | None:
        """Return the reserved namespace of *key*, or of a pattern, or None if it is ordinary."""
        if key.startswith(_RESERVED_HEAD):
            for namespace in self.namespaces:
                if key.startswith(namespace.head):
                    return namespace
        return None

    def is_publishable(self, key: bytes) -> bool:
        """Return whether a client may publish to *key*: an ordinary key, or a complete key of a public namespace.

        The key after an address must also be such a key, and not another address.
        """
        namespace = self.namespace(key)
        if namespace is None:
            return True
        if not namespace.public or key.count(self.separator) < namespace.guard:
            return False
        inner = self.inner_key(key)
        return inner is None or (not inner.startswith(ADDRESS_HEAD) and self.is_publishable(inner))

    def inner_key(self, key: bytes) -> bytes | None:
        """Return the key after the address in *key*, or None if *key* is not a complete key at an address.

        It is also a name of the topic of the message, so the rules on publishing apply to it too. Spec: sbus-protocol(7) §5.
        """
        namespace = self.namespace(key)
        if namespace is None or namespace.head != ADDRESS_HEAD or key.count(self.separator) < namespace.guard:
            return None
        return key.split(self.separator, namespace.guard)[-1]

    def matches(self, pattern: bytes, key: bytes) -> bool:
        """Return whether *pattern* matches *key*. Both are any bytes without NUL."""
        # Few of many patterns have a prefix of the key, and splitting takes ten times as long as this check.
        if not key.startswith(pattern.partition(b"*")[0]):
            return False
        namespace = self.namespace(key)
        guard = namespace.guard if namespace else 0
        wanted = pattern.split(self.separator)
        segments = key.split(self.separator)
        # split() returns an empty last segment after a separator at the end: that segment matches the rest.
        matches_rest = not wanted[-1]
        if matches_rest:
            wanted.pop()
        if len(segments) < len(wanted) + matches_rest or (len(segments) > len(wanted) and not matches_rest):
            return False
        if matches_rest and len(wanted) < guard:
            return False
        return all(
            segment == want if b"*" not in want else position >= guard and _star_matches(want, segment)
            for position, (want, segment) in enumerate(zip(wanted, segments, strict=False))
        )


class Reach:
    """The keys that one pattern can match. The pattern is split once, so the cost of a check depends only on the prefix.

    Not `intersection`: a prefix may end within a segment, which no pattern with a rest can say, and the bus may have another separator.
    """

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


def text_of(key: bytes) -> str:
    """Return a key or pattern as text: UTF-8, and a surrogate for each byte that is not, as os.fsdecode() does."""
    return key.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return the key or pattern of a text that :func:`text_of` may have returned. Raises UnicodeEncodeError for other surrogates."""
    return text.encode("utf-8", "surrogateescape")


def connection_address(connection: int) -> bytes:
    """Return the address of the connection with that number, ``!/conn/<id>/``, the prefix of its keys. Spec: sbus-protocol(7) §5."""
    return b"%b%d/" % (ADDRESS_HEAD, connection)


def parse_connection_address(address: bytes) -> int:
    """Return the connection number in the address ``!/conn/<id>/``. Raises ProtocolError (EPROTO) if it is malformed."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ProtocolError(ErrorCode.EPROTO, f"invalid address of a connection: {address[:64]!r}")
    return int(match[1])


def pattern_matches(pattern: bytes, key: bytes, separator: bytes = b"/") -> bool:
    """Return whether *pattern* matches *key* on a bus with *separator*: the reference for every other matcher."""
    return KeySpace(separator).matches(pattern, key)


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


def _star_matches(want: bytes, segment: bytes) -> bool:
    """Return whether a segment of a pattern, with a star, matches a segment of a key. In ``**`` the second star matches no bytes."""
    before, _, after = want.partition(b"*")
    return not after.strip(b"*") and segment.startswith(before)


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
