"""Finds the patterns that match a key with a trie: the cost of comparing each pattern with each key is their product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sbusd.archive.record.key_text import key_bytes
from sbusd.protocol.keys import KeySpace

_SPACE = KeySpace()
_RESERVED = b"!/"


@dataclass(slots=True)
class _Node:
    """A node of the trie: patterns with the same first segments."""

    literal: dict[bytes, _Node] = field(default_factory=dict)
    stars: dict[bytes, _Node] = field(default_factory=dict)
    """By the text before the star."""
    whole: list[str] = field(default_factory=list)
    """Patterns that end here."""
    rest: list[str] = field(default_factory=list)
    """Patterns that end here with a separator, and match every continuation."""


class PatternSet:
    """Patterns of subscriptions, as text of the record. Spec: sbus-protocol(7) §3."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._root = _Node()
        for text in patterns:
            self._add(text)

    def matching(self, key: str) -> list[str]:
        """Return the patterns that match *key*, in no order; both are text of the record. An invalid text has no match."""
        try:
            raw = key_bytes(key)
        except ValueError:
            return []
        found = _walk(self._root, raw.split(_SPACE.separator))
        if raw.startswith(_RESERVED):
            return [text for text in found if _SPACE.matches(key_bytes(text), raw)]
        return list(found)

    def _add(self, text: str) -> None:
        """Add one pattern, unless it cannot match any key."""
        try:
            segments = key_bytes(text).split(_SPACE.separator)
        except ValueError:
            return
        node = self._root
        for segment in segments if segments[-1] else segments[:-1]:
            before, star, after = segment.partition(b"*")
            if after.strip(b"*"):
                return
            node = (node.stars if star else node.literal).setdefault(before, _Node())
        (node.whole if segments[-1] else node.rest).append(text)


def _walk(root: _Node, segments: list[bytes]) -> Iterator[str]:
    """Yield the patterns under *root* that match *segments*. Not recursive, because a client decides how deep a key is."""
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if depth == len(segments):
            yield from node.whole
            continue
        yield from node.rest
        segment = segments[depth]
        if (child := node.literal.get(segment)) is not None:
            waiting.append((child, depth + 1))
        waiting += [(child, depth + 1) for before, child in node.stars.items() if segment.startswith(before)]
