"""The patterns of subscriptions in a trie, which finds those that match a key. Spec: sbus-protocol(7) §3."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sbusd.archive.record.key_text import key_bytes
from sbusd.protocol.keys import KeySpace

MAX_BRANCHES = 256
"""Maximum number of branches of one user's patterns that the search for a key follows at a time. With ``*``, ``a*``, ``aa*``, … in each of
two segments it is their product, so a user could make the search slow for the keys of others. Most users have fewer than ten.
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

    _texts: list[bytes] | None = None
    """The texts before stars, sorted, once they are needed."""
    _shorter: list[int] = field(default_factory=list)
    """For each of them, the place of the longest other one that it begins with, or -1."""

    def matching_stars(self, segment: bytes) -> Iterator[_Node]:
        """Yield the nodes below whose text before the star begins *segment*, the longest text first. Do not add patterns afterwards."""
        if self._texts is None:
            self._sort()
        texts = self._texts or []
        # Between a text that begins the segment and the segment itself, all texts begin with the former.
        place = bisect_right(texts, segment) - 1
        while place >= 0:
            if segment.startswith(texts[place]):
                yield self.stars[texts[place]]
            place = self._shorter[place]

    def _sort(self) -> None:
        """Sort the texts before stars."""
        self._texts = sorted(self.stars)
        begun: list[int] = []
        for place, text in enumerate(self._texts):
            while begun and not text.startswith(self._texts[begun[-1]]):
                begun.pop()
            self._shorter.append(begun[-1] if begun else -1)
            begun.append(place)


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

    def most_branches(self) -> int:
        """Return a number of branches that the search for no key exceeds at a time: below each node, those of the worst segment."""
        branches: dict[int, int] = {}
        for node in reversed(list(_all_nodes(self._root))):  # children first
            branches[id(node)] = max(1, _branches_below(node, branches))
        return branches[id(self._root)]

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


def searchable(patterns: list[str]) -> set[str]:
    """Return those of one user's *patterns* that are used: all, unless they have more than :data:`MAX_BRANCHES`.

    Of the patterns with a star, the first half is used then, or a quarter, and so on; 256 patterns never have too many. Those without a
    star do not multiply, and are all used.
    """
    plain = {pattern for pattern in patterns if "*" not in pattern}
    stars = [pattern for pattern in patterns if "*" in pattern]
    while PatternTrie(stars).most_branches() > MAX_BRANCHES:
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


def _branches_below(node: _Node, branches: Mapping[int, int]) -> int:
    """Return the most branches below *node* for keys with any next segment; *branches* has those of each child."""
    most = 0
    begun: list[tuple[bytes, int]] = []
    """Texts before stars, each the beginning of the next one, with the branches of all up to it."""
    for text in sorted({*node.stars, *node.literal}):
        while begun and not text.startswith(begun[-1][0]):
            begun.pop()
        below = begun[-1][1] if begun else 0
        if (star := node.stars.get(text)) is not None:
            below += branches[id(star)]
            begun.append((text, below))
        literal = node.literal.get(text)
        most = max(most, below + (branches[id(literal)] if literal is not None else 0))
    return most
