"""Conditions on payloads. Hostile text cannot make them slow: the time grows at most with the size of the payload times that of the text.

Regular expressions are not used: some of them need exponential time for a text that a user writes into the journal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence


def text_matches(glob: str, text: str) -> bool:
    """Return whether the whole *text* matches *glob*, in which ``*`` matches any characters.

    Each part between two stars is searched once, at its first place after the part before: an earlier place never matches less.
    """
    first, *rest = glob.split("*")
    if not rest:
        return text == glob
    last = rest.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    begin, end = len(first), len(text) - len(last)
    for part in rest:
        found = text.find(part, begin, end)
        if found < 0:
            return False
        begin = found + len(part)
    return True


class Payload:
    """The payload of a message; it is parsed when a condition needs that."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._members: dict[str, object] | None = None

    def matches(self, conditions: Sequence[tuple[str, str]]) -> bool:
        """Return whether all *conditions* hold: each a member of a JSON object, or the payload as text if it is empty."""
        return all(any(text_matches(glob, text) for text in self.texts(name)) for name, glob in conditions)

    def texts(self, name: str) -> list[str]:
        """Return the values of a member as texts: several of a list, none if it is missing, null or an object."""
        if not name:
            return [self._content.decode("utf-8", "replace")]
        value = self._object().get(name)
        return [text for each in (value if isinstance(value, list) else [value]) if (text := _text(each)) is not None]

    def _object(self) -> dict[str, object]:
        """Return the members of the payload, none if it is not a JSON object."""
        if self._members is None:
            try:
                value = json.loads(self._content)
            except (ValueError, RecursionError):
                value = None
            self._members = value if isinstance(value, dict) else {}
        return self._members


def _text(value: object) -> str | None:
    """Return a JSON value as text: numbers and booleans as JSON writes them."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, int | float) else None
