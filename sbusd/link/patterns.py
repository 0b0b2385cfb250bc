"""An index of patterns that finds all that match a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sbusd.protocol.keys import KeySpace
from sbusd.protocol.overlap import is_matchable, split_pattern

_KEYS = KeySpace()


@dataclass(slots=True)
class _Node:
    """The patterns with the same first segments."""

    literal: dict[bytes, _Node] = field(default_factory=dict)
    starred: dict[bytes, _Node] = field(default_factory=dict)
    """By the bytes before the star."""
    whole: set[bytes] = field(default_factory=set)
    open: set[bytes] = field(default_factory=set)

    def is_empty(self) -> bool:
        return not (self.literal or self.starred or self.whole or self.open)


class PatternIndex:
    """A set of patterns that finds those that match a key, without a look at those that begin otherwise."""

    def __init__(self) -> None:
        self._root = _Node()
        self._patterns: set[bytes] = set()

    def __contains__(self, pattern: bytes) -> bool:
        return pattern in self._patterns

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._patterns)

    def __len__(self) -> int:
        return len(self._patterns)

    def add(self, pattern: bytes) -> None:
        """Add *pattern*; a pattern that matches no key is in the set and never found."""
        if pattern in self._patterns:
            return
        self._patterns.add(pattern)
        if is_matchable(pattern):
            segments, is_open = split_pattern(pattern)
            node = self._root
            for segment in segments:
                before, star, _ = segment.partition(b"*")
                node = (node.starred if star else node.literal).setdefault(before, _Node())
            (node.open if is_open else node.whole).add(pattern)

    def remove(self, pattern: bytes) -> None:
        """Remove *pattern*, if it is there."""
        if pattern not in self._patterns:
            return
        self._patterns.remove(pattern)
        if not is_matchable(pattern):
            return
        segments, is_open = split_pattern(pattern)
        path: list[tuple[dict[bytes, _Node], bytes]] = []
        node = self._root
        for segment in segments:
            before, star, _ = segment.partition(b"*")
            children = node.starred if star else node.literal
            path.append((children, before))
            node = children[before]
        (node.open if is_open else node.whole).remove(pattern)
        for children, before in reversed(path):
            if not children[before].is_empty():
                break
            del children[before]

    def match(self, key: bytes) -> list[bytes]:
        """Return the patterns that match *key*, sorted."""
        namespace = _KEYS.namespace(key)
        guard = namespace.guard if namespace else 0
        segments = key.split(b"/")
        found: list[bytes] = []
        nodes = [self._root]
        for depth, segment in enumerate(segments):
            following: list[_Node] = []
            for node in nodes:
                if depth >= guard:
                    found += node.open
                if segment in node.literal:
                    following.append(node.literal[segment])
                if node.starred and depth >= guard:
                    following += [node.starred[before] for before in _heads(node.starred, segment)]
            nodes = following
            if not nodes:
                break
        else:
            for node in nodes:
                found += node.whole
        return sorted(found)


def _heads(starred: dict[bytes, _Node], segment: bytes) -> list[bytes]:
    """Return the keys of *starred* that *segment* begins with, looking at whichever are fewer."""
    if len(starred) <= len(segment):
        return [before for before in starred if segment.startswith(before)]
    return [segment[:length] for length in range(len(segment) + 1) if segment[:length] in starred]
