"""The patterns of subscriptions in a trie, which finds those that match a key. Spec: sbus-protocol(7) §3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sbusd.archive.record.key_text import key_bytes
from sbusd.protocol.keys import KeySpace

MAX_STEPS = 1_024
"""Maximum number of nodes that the patterns of one user can add to the search for a key. The patterns ``*``, ``a*``, ``aa*``, … in each of
two segments have their product of nodes, so a user could make the search slow for the keys of others. Most users have less than ten.
"""

_SPACE = KeySpace()
_RESERVED = b"!/"


@dataclass(slots=True, eq=False)
class _Node:
    """A node of the trie: patterns with the same first segments."""

    literal: dict[bytes, _Node] = field(default_factory=dict)
    stars: dict[bytes, _Node] = field(default_factory=dict)
    """By the text before the star."""
    whole: list[str] = field(default_factory=list)
    """Patterns that end here."""
    rest: list[str] = field(default_factory=list)
    """Patterns that end here with a separator, and match every continuation."""

    def matching_stars(self, segment: bytes) -> Iterator[_Node]:
        """Yield the nodes below whose text before the star begins *segment*."""
        if len(self.stars) <= len(segment):
            yield from (child for before, child in self.stars.items() if segment.startswith(before))
        else:
            texts = (segment[:length] for length in range(len(segment) + 1))
            yield from (self.stars[text] for text in texts if text in self.stars)


class PatternTrie:
    """Patterns as text of the record. To compare each pattern with each key would cost their product."""

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
        segments = raw.split(_SPACE.separator)
        found: list[str] = []
        for node, depth in _visited(self._root, segments):
            found += node.whole if depth == len(segments) else node.rest
        if raw.startswith(_RESERVED):
            return [text for text in found if _SPACE.matches(key_bytes(text), raw)]
        return found

    def most_steps(self) -> int:
        """Return a number of nodes that the search for no key exceeds: below each node, the segment that takes most."""
        steps: dict[int, int] = {}
        for node in reversed(list(_all_nodes(self._root))):  # children first
            steps[id(node)] = 1 + max((_steps_below(node, text, steps) for text in (*node.literal, *node.stars)), default=0)
        return steps[id(self._root)]

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


def walkable(patterns: list[str]) -> set[str]:
    """Return those of one user's *patterns* that are used: all, unless the search can take more than :data:`MAX_STEPS` with them.

    Then it is the first ones with a star that do not make it slower, and those without, of which a key matches few.
    """
    plain = {pattern for pattern in patterns if "*" not in pattern}
    stars = [pattern for pattern in patterns if "*" in pattern]
    while stars and PatternTrie([*plain, *stars]).most_steps() > MAX_STEPS:
        stars = stars[: len(stars) // 2]
    return plain.union(stars)


def _visited(root: _Node, segments: list[bytes]) -> Iterator[tuple[_Node, int]]:
    """Yield the nodes under *root* that begin *segments*, each with its depth. Not recursive: a client decides how deep a key is."""
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        if depth == len(segments):
            continue
        segment = segments[depth]
        if (child := node.literal.get(segment)) is not None:
            waiting.append((child, depth + 1))
        if node.stars:
            waiting += [(child, depth + 1) for child in node.matching_stars(segment)]


def _all_nodes(root: _Node) -> Iterator[_Node]:
    """Yield all nodes, each before those below it."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [*node.literal.values(), *node.stars.values()]


def _steps_below(node: _Node, segment: bytes, steps: dict[int, int]) -> int:
    """Return the most nodes below *node* that a search visits for keys that go on with *segment*; *steps* has those of each child."""
    literal = node.literal.get(segment)
    below = sum(steps[id(child)] for child in node.matching_stars(segment))
    return below + (steps[id(literal)] if literal is not None else 0)
