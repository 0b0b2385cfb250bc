"""Routing keys and patterns. Spec: sbus-protocol(7) §3.

Rules, for a bus whose separator is ``/``:

- a key is bytes without NUL, split into segments by the separator; a ``*`` in a key is an ordinary byte;
- a ``*`` in a pattern matches the rest of its segment, which may be empty; bytes after it in the same segment can never match;
- a separator at the end of a pattern also matches any further bytes, or none; the empty pattern matches everything;
- a key that begins with ``!/`` is reserved: a pattern must spell out its first segments, as many as its namespace requires
  (the *guard*). In the original server ``SUB ""`` and ``SUB */cred/`` can read the secrets of all users; here no wildcard can.

:func:`pattern_matches` is the reference that the compiled router is tested against.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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


def address_of(connection: int) -> bytes:
    """Return the address of a connection, the prefix of all its own keys. Spec: sbus-protocol(7) §5."""
    return b"%b%d/" % (ADDRESS_HEAD, connection)


def pattern_matches(pattern: bytes, key: bytes, separator: bytes = b"/") -> bool:
    """Return whether *pattern* matches *key* on a bus with *separator*: the reference for every other matcher."""
    return KeySpace(separator).matches(pattern, key)


def _star_matches(want: bytes, segment: bytes) -> bool:
    """Return whether a segment of a pattern, with a star, matches a segment of a key. In ``**`` the second star matches no bytes."""
    before, _, after = want.partition(b"*")
    return not after.strip(b"*") and segment.startswith(before)
