"""Which stream stores a key. Spec: store.toml(5)."""

from __future__ import annotations

from collections.abc import Sequence

from sbusd.config.store import NEVER_STORED, StreamSettings
from sbusd.protocol.keys import KeySpace, intersection

_KEYS = KeySpace()

_NEVER = tuple(head.encode() for head in (*NEVER_STORED, "!/"))


class KeyMatcher:
    """Patterns, compiled: most are a prefix that ends with a separator, or one key.

    Not a `PatternIndex`: only whether any matches is asked, for each message, and ``startswith`` answers without splitting the key.
    """

    def __init__(self, patterns: Sequence[bytes]) -> None:
        """*patterns* are those of one stream."""
        self._prefixes = tuple(each for each in patterns if b"*" not in each and (not each or each.endswith(b"/")))
        self._keys = frozenset(each for each in patterns if b"*" not in each and each and not each.endswith(b"/"))
        self._others = tuple(each for each in patterns if b"*" in each)

    def matches(self, key: bytes) -> bool:
        """Return whether a pattern matches *key*, which the store may keep."""
        if key.startswith(_NEVER):
            return False
        return key.startswith(self._prefixes) or key in self._keys or any(_KEYS.matches(each, key) for each in self._others)


class KeyMap:
    """The streams by their keys."""

    def __init__(self, streams: Sequence[StreamSettings]) -> None:
        """*streams* are those of the configuration; no key matches two of them."""
        self._patterns = [(each.name, each.patterns) for each in streams]
        self._matchers = [(each.name, KeyMatcher(each.patterns)) for each in streams]

    def stream_of(self, key: bytes) -> str | None:
        """Return the name of the stream that stores *key*, or None."""
        return next((name for name, matcher in self._matchers if matcher.matches(key)), None)

    def streams_of(self, pattern: bytes) -> list[str]:
        """Return the names of the streams that can have keys that *pattern* matches."""
        return [name for name, patterns in self._patterns if any(intersection(pattern, each) is not None for each in patterns)]
