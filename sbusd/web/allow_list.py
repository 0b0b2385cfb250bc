"""Which patterns a browser may subscribe to, and which keys it may publish to. No I/O. Spec: sbus-web(8), "SECURITY"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.keys import KeySpace, bytes_of, covers, is_matchable

EVERY_ORDINARY_KEY = ""
"""The default: the empty pattern matches every key that is not reserved, so no private key."""

_KEYS = KeySpace()


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
        # The empty pattern allows each ordinary one, also if it matches no key: it may, if the separator of the bus is another.
        allows_ordinary = b"" in self.subscribe and _KEYS.namespace(pattern) is None
        if not allows_ordinary and not any(covers(allowed, pattern) for allowed in self.subscribe):
            raise NotAllowedError("this gateway does not allow the pattern; start sbus-web with --allow for it")

    def check_key(self, key: bytes) -> None:
        """Raise NotAllowedError unless an allowed pattern matches *key*."""
        if not any(_KEYS.matches(allowed, key) for allowed in self.publish):
            raise NotAllowedError("this gateway does not allow the key; start sbus-web with --allow-publish for it")


def _checked(pattern: str) -> bytes:
    """Return *pattern* as bytes. Raises ValueError if it can match no key."""
    encoded = bytes_of(pattern)
    if not is_matchable(encoded):
        raise ValueError(f"pattern {pattern!r} matches no key: see sbus(7) for the place of a wildcard")
    return encoded
