"""How wide a search in an index of patterns is."""

from __future__ import annotations

from sbus.protocol.pattern_index import PatternIndex


def branches(index: PatternIndex, key: bytes) -> int:
    """Return the greatest number of nodes at one depth that the search for *key* visits."""
    return max(len(nodes) for nodes in index.levels(key.split(b"/"), 0))
