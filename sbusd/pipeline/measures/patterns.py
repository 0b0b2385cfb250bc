"""Which of many patterns take a key: a trie, for the costs of trying each pattern on each key grow with their product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sbusd.archive.record.key_text import key_bytes
from sbusd.protocol.keys import KeySpace

_SPACE = KeySpace()
_RESERVED = b"!/"


@dataclass(slots=True)
class _Node:
    """Where patterns with the same first segments part."""

    literal: dict[bytes, _Node] = field(default_factory=dict)
    stars: dict[bytes, _Node] = field(default_factory=dict)
    """By what stands before the star."""
    whole: list[str] = field(default_factory=list)
    """Patterns that end here."""
    rest: list[str] = field(default_factory=list)
    """Patterns that end here with a separator, and take whatever follows."""


class PatternSet:
    """Patterns of subscriptions, as the record writes them. Spec: sbus-protocol(7) §3."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._root = _Node()
        for text in patterns:
            self._add(text)

    def matching(self, key: str) -> list[str]:
        """Return those that take *key*, both being texts of the record, in no order. A text that is no key's takes nothing."""
        try:
            raw = key_bytes(key)
        except ValueError:
            return []
        found = _walk(self._root, raw.split(_SPACE.separator))
        if raw.startswith(_RESERVED):
            return [text for text in found if _SPACE.matches(key_bytes(text), raw)]
        return list(found)

    def _add(self, text: str) -> None:
        """Put one pattern where :func:`_walk` finds it; one that can take nothing, nowhere."""
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
    """Yield the patterns below *root* that take *segments*. Not by recursion: a stranger decides how deep a key is."""
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
