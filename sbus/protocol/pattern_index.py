"""An index of patterns that finds all that match a key. Spec: sbus-protocol(7) §3.

The data plane has its own, compiled one: sbusd/dataplane/route/trie.pxi.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sbus.protocol.keys import KeySpace, is_matchable, split_pattern

_KEYS = KeySpace()


@dataclass(slots=True, eq=False)
class _Node:
    """The patterns with the same first segments."""

    literal: dict[bytes, _Node] = field(default_factory=dict)
    starred: dict[int, dict[bytes, _Node]] = field(default_factory=dict)
    """By the bytes before the star, and those by their number: one look at each length finds all that a segment begins with."""
    whole: set[bytes] = field(default_factory=set)
    open: set[bytes] = field(default_factory=set)

    def is_empty(self) -> bool:
        return not (self.literal or self.starred or self.whole or self.open)

    def ends(self, *, is_open: bool) -> set[bytes]:
        """Return the patterns that end here, with a separator (open) or without."""
        return self.open if is_open else self.whole

    def below(self) -> Iterator[tuple[bytes, _Node]]:
        """Yield the nodes after a star with the bytes before it."""
        for texts in self.starred.values():
            yield from texts.items()

    def child(self, segment: bytes) -> _Node:
        """Return the node after *segment* of a pattern, a new one if there is none."""
        if not segment.endswith(b"*"):
            return self.literal.setdefault(segment, _Node())
        return self.starred.setdefault(len(segment), {}).setdefault(segment[:-1], _Node())

    def prune(self, segment: bytes) -> None:
        """Remove the node after *segment* of a pattern."""
        if not segment.endswith(b"*"):
            del self.literal[segment]
            return
        texts = self.starred[len(segment)]
        del texts[segment[:-1]]
        if not texts:
            del self.starred[len(segment)]


class PatternIndex:
    """A set of patterns that finds those that match a key, without a look at those that begin otherwise."""

    def __init__(self, patterns: Iterable[bytes] = ()) -> None:
        self._root = _Node()
        self._patterns: set[bytes] = set()
        for pattern in patterns:
            self.add(pattern)

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
                node = node.child(segment)
            node.ends(is_open=is_open).add(pattern)

    def remove(self, pattern: bytes) -> None:
        """Remove *pattern*, if it is there."""
        if pattern not in self._patterns:
            return
        self._patterns.remove(pattern)
        if not is_matchable(pattern):
            return
        segments, is_open = split_pattern(pattern)
        path = [self._root]
        for segment in segments:
            path.append(path[-1].child(segment))
        path.pop().ends(is_open=is_open).remove(pattern)
        for node, segment in zip(reversed(path), reversed(segments), strict=True):
            if not node.child(segment).is_empty():
                break
            node.prune(segment)

    def match(self, key: bytes) -> list[bytes]:
        """Return the patterns that match *key*, sorted."""
        namespace = _KEYS.namespace(key)
        guard = namespace.guard if namespace else 0
        segments = key.split(b"/")
        found: list[bytes] = []
        for depth, nodes in enumerate(self.levels(segments, guard)):
            for node in nodes:
                if depth == len(segments):
                    found += node.whole
                elif depth >= guard:
                    found += node.open
        return sorted(found)

    def levels(self, segments: list[bytes], guard: int) -> Iterator[list[_Node]]:
        """Yield the nodes that the search for a key visits at each depth; in the first *guard* segments no star matches."""
        nodes = [self._root]
        yield nodes
        for depth, segment in enumerate(segments):
            following: list[_Node] = []
            for node in nodes:
                if segment in node.literal:
                    following.append(node.literal[segment])
                if depth >= guard:
                    for length, texts in node.starred.items():
                        if (child := texts.get(segment[: length - 1])) is not None:
                            following.append(child)
            nodes = following
            if not nodes:
                return
            yield nodes

    def most_branches(self) -> int:
        """Return a number of nodes that the search for no key exceeds at a depth: below each node, those of the worst segment."""
        branches: dict[int, int] = {}
        ordered = [self._root]
        for node in ordered:  # It grows. Not recursive: a client decides how deep a pattern is.
            ordered += [*node.literal.values(), *(child for _, child in node.below())]
        for node in reversed(ordered):  # Children first.
            branches[id(node)] = max(1, _branches_below(node, branches))
        return branches[id(self._root)]


def _branches_below(node: _Node, branches: Mapping[int, int]) -> int:
    """Return the most branches below *node* for keys with any next segment; *branches* has those of each child."""
    most = 0
    begun: list[tuple[bytes, int]] = []
    """Texts before stars, each the beginning of the next one, with the branches of all up to it."""
    stars = dict(node.below())
    for text in sorted({*stars, *node.literal}):
        while begun and not text.startswith(begun[-1][0]):
            begun.pop()
        below = begun[-1][1] if begun else 0
        if (star := stars.get(text)) is not None:
            below += branches[id(star)]
            begun.append((text, below))
        literal = node.literal.get(text)
        most = max(most, below + (branches[id(literal)] if literal is not None else 0))
    return most
