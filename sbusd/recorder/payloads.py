"""How much of a payload is kept, by its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sbusd.config.recorder import PayloadRule
from sbusd.protocol.limits import MAX_PACKET_BYTES

Keep = int | Literal["whole", "none"]

_RESERVED = b"!/"

_REMEMBERED_KEYS = 4_096
"""Keys whose rule is remembered: most traffic is on few of them, and a stranger can invent as many as they like."""


class PayloadPolicy:
    """The rules of recorder.toml, ready to be asked for each message.

    Of reserved keys, secrets and connections' own, nothing is kept unless a rule whose prefix itself begins with ``!/`` says so: a
    rule for everything must not write down by accident what the bus promised to a single user.
    """

    def __init__(self, keep: Keep = "whole", rules: Sequence[PayloadRule] = ()) -> None:
        """Take *keep* for keys that no rule speaks of."""
        base = [(b"", _limit(keep)), (_RESERVED, None)]
        # Prefixes shorter than "!/" never speak of reserved keys: that rule stands in front of theirs.
        ordered = [*base, *((rule.keys.encode("utf-8", "surrogatepass"), _limit(rule.keep)) for rule in rules)]
        places = sorted(range(len(ordered)), key=lambda place: (len(ordered[place][0]), place), reverse=True)
        self._rules = [ordered[place] for place in places]
        self._known: dict[bytes, int | None] = {}

    def kept(self, key: bytes, payload: bytes) -> bytes | None:
        """Return what is kept of *payload*, which was published to *key*: all of it, its head, or None for nothing."""
        try:
            limit = self._known[key]
        except KeyError:
            limit = self._look_up(key)
        if limit is None:
            return None
        return payload if len(payload) <= limit else payload[:limit]

    def _look_up(self, key: bytes) -> int | None:
        """Return how many bytes are kept under *key*, None for none at all, and remember it."""
        limit = next(limit for prefix, limit in self._rules if key.startswith(prefix))
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        self._known[key] = limit
        return limit


def _limit(keep: Keep) -> int | None:
    """Return the most bytes that are kept, None for none."""
    return MAX_PACKET_BYTES if keep == "whole" else None if keep == "none" else keep
