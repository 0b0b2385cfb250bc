"""Which patterns a browser may subscribe to, and which keys it may publish to. No I/O. Spec: sbus-web(8), "SECURITY"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import KeySpace, bytes_of

EVERY_ORDINARY_KEY = ""
"""The default: the empty pattern matches every key that is not reserved, so no private key."""

_KEYS = KeySpace()
_STAR = b"*"


class NotAllowedError(ProtocolError):
    """The allow list of this gateway does not have a pattern or key."""

    def __init__(self, words: str) -> None:
        super().__init__(ErrorCode.EPERM, words)


@dataclass(frozen=True, slots=True)
class AllowList:
    """The patterns for subscriptions and those for publications. An empty tuple allows nothing."""

    subscribe: tuple[bytes, ...]
    publish: tuple[bytes, ...]

    @classmethod
    def of(cls, subscribe: Iterable[str], publish: Iterable[str]) -> AllowList:
        """Return the list with patterns as a user writes them.

        Raises:
            ValueError: a pattern can match no key, so it is a mistake.
        """
        return cls(tuple(map(_checked, subscribe)), tuple(map(_checked, publish)))

    def check_pattern(self, pattern: bytes) -> None:
        """Raise NotAllowedError unless one allowed pattern matches every key that *pattern* matches."""
        if not any(covers(allowed, pattern) for allowed in self.subscribe):
            raise NotAllowedError("this gateway does not allow the pattern; start sbus-web with --allow for it")

    def check_key(self, key: bytes) -> None:
        """Raise NotAllowedError unless an allowed pattern matches *key*."""
        if not any(_KEYS.matches(allowed, key) for allowed in self.publish):
            raise NotAllowedError("this gateway does not allow the key; start sbus-web with --allow-publish for it")


def covers(allowed: bytes, pattern: bytes) -> bool:
    """Return whether *allowed* matches every key that *pattern* matches. False in case of doubt."""
    namespace = _KEYS.namespace(allowed)
    if namespace != _KEYS.namespace(pattern):
        return False
    (outer, outer_rest), (inner, inner_rest) = _segments(allowed), _segments(pattern)
    guard = namespace.guard if namespace else 0
    if outer_rest:
        # "a/" needs a separator behind its segments.
        if len(inner) < len(outer) + (not inner_rest) or len(outer) < guard:
            return False
    elif inner_rest or len(inner) != len(outer):
        return False
    return all(
        segment == want if _STAR not in want else position >= guard and _covers_segment(want, segment)
        for position, (want, segment) in enumerate(zip(outer, inner, strict=False))
    )


def _segments(pattern: bytes) -> tuple[list[bytes], bool]:
    """Return the segments of *pattern*, and whether it matches any rest."""
    segments = pattern.split(_KEYS.separator)
    matches_rest = not segments[-1]
    return (segments[:-1] if matches_rest else segments), matches_rest


def _covers_segment(want: bytes, segment: bytes) -> bool:
    """Return whether the segment *want*, which has a star, matches all that *segment* matches."""
    before, _, after = want.partition(_STAR)
    return not after.strip(_STAR) and segment.partition(_STAR)[0].startswith(before)


def _checked(pattern: str) -> bytes:
    """Return *pattern* as bytes. Raises ValueError if it can match no key."""
    encoded = bytes_of(pattern)
    if not covers(encoded, encoded):
        raise ValueError(f"pattern {pattern!r} matches no key: see sbus(7) for the place of a wildcard")
    return encoded
