"""Routing keys and patterns. Spec: sbus-protocol(7) §3.

Rules, for a bus whose separator is ``/``:

- a key is bytes without NUL, cut into segments by the separator; a ``*`` in a key is an ordinary byte;
- a ``*`` in a pattern takes the rest of its segment, also none of it; what stands after it in the same segment can never match;
- a separator at the end of a pattern also takes any further bytes, also none; the empty pattern takes everything;
- a key that begins with ``!/`` is reserved: a pattern must spell its first segments out, as many as the namespace says
  (the *guard*). The original server lets ``SUB ""`` and ``SUB */cred/`` read everybody's secrets; here no wildcard can.

:func:`pattern_matches` is the plain reference that the compiled router is tested against.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_RESERVED_HEAD = b"!/"
"""How every reserved key begins."""

SECRET_HEAD = b"!/cred/"
"""How every secret key begins, and every credential prefix."""

SECRET_SEGMENTS = 5
"""Segments before the rest of a secret key: ``!``, ``cred``, gid, uid, pid."""

ADDRESS_HEAD = b"!/conn/"
"""How every connection's address begins."""

EVENT_HEAD = b"!/event/"
"""How the key of every event of the bus begins."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A part of the reserved keys.

    ``head`` is how its keys begin; ``guard`` how many leading segments a pattern must spell out to reach one, and how many
    separators a key must have at least; ``public`` whether clients may publish there.
    """

    head: bytes
    guard: int
    public: bool


@dataclass(frozen=True, slots=True)
class KeySpace:
    """The rules for keys on one bus: its separator, and the credential prefix it stands behind, if any.

    ``separator`` is ``b"/"``, or ``b"."`` for the earlier revision of the protocol, which reserves nothing.
    ``prefix`` is empty, or ``!/cred/<gid>/<uid>/<pid>`` once for each server in front, joined by ``/``.
    ``is_guarded``: wildcards do not reach reserved keys; not so for the patterns of taps.
    """

    separator: bytes = b"/"
    prefix: bytes = b""
    is_guarded: bool = True
    namespaces: tuple[Namespace, ...] = field(init=False, repr=False, compare=False)
    """The reserved namespaces; the first whose head a key begins with is the key's. Spec: sbus-protocol(7) §5."""

    def __post_init__(self) -> None:
        # Once, and not for each SUB.
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
        """Return the reserved namespace of *key*, or of a pattern, or None if it is an ordinary one."""
        if key.startswith(_RESERVED_HEAD):
            for namespace in self.namespaces:
                if key.startswith(namespace.head):
                    return namespace
        return None

    def is_publishable(self, key: bytes) -> bool:
        """Return whether a client may publish to *key*: an ordinary key, or a whole key of a public namespace.

        Behind an address there must be such a key too, and no further address.
        """
        namespace = self.namespace(key)
        if namespace is None:
            return True
        if not namespace.public or key.count(self.separator) < namespace.guard:
            return False
        inner = self.inner_key(key)
        return inner is None or (not inner.startswith(ADDRESS_HEAD) and self.is_publishable(inner))

    def inner_key(self, key: bytes) -> bytes | None:
        """Return the key behind the address in *key*, or None if *key* is not a whole key at an address.

        It is a second name for what the message is about, so the rules on publishing are about it too. Spec: sbus-protocol(7) §5.
        """
        namespace = self.namespace(key)
        if namespace is None or namespace.head != ADDRESS_HEAD or key.count(self.separator) < namespace.guard:
            return None
        return key.split(self.separator, namespace.guard)[-1]

    def matches(self, pattern: bytes, key: bytes) -> bool:
        """Return whether *pattern* takes *key*. Both are any bytes without NUL."""
        # Of many patterns few begin as the key does, and to split them takes ten times as long.
        if not key.startswith(pattern.partition(b"*")[0]):
            return False
        namespace = self.namespace(key)
        guard = namespace.guard if namespace else 0
        wanted = pattern.split(self.separator)
        segments = key.split(self.separator)
        # split() gives a last, empty segment after a separator at the end: that one takes all that is left.
        takes_rest = not wanted[-1]
        if takes_rest:
            wanted.pop()
        if len(segments) < len(wanted) + takes_rest or (len(segments) > len(wanted) and not takes_rest):
            return False
        if takes_rest and len(wanted) < guard:
            return False
        return all(
            segment == want if b"*" not in want else position >= guard and _star_matches(want, segment)
            for position, (want, segment) in enumerate(zip(wanted, segments, strict=False))
        )


def address_of(connection: int) -> bytes:
    """Return the address of a connection, which every key of its own begins with. Spec: sbus-protocol(7) §5."""
    return b"%b%d/" % (ADDRESS_HEAD, connection)


def pattern_matches(pattern: bytes, key: bytes, separator: bytes = b"/") -> bool:
    """Return whether *pattern* takes *key* on a bus that speaks *separator*: the reference for every other matcher."""
    return KeySpace(separator).matches(pattern, key)


def _star_matches(want: bytes, segment: bytes) -> bool:
    """Return whether one segment of a pattern, with a star in it, takes one of a key. ``**`` is ``*`` twice: the second takes none."""
    before, _, after = want.partition(b"*")
    return not after.strip(b"*") and segment.startswith(before)
