"""Decides by the key how much of a payload is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sbusd.config.recorder import PayloadRule
from sbusd.protocol.limits import MAX_PACKET_BYTES

Keep = int | Literal["whole", "none"]

_RESERVED = b"!/"

_REMEMBERED_KEYS = 4_096
"""Size of the cache of rules by key. Most traffic is on few keys, but clients can invent any number of keys."""


class PayloadPolicy:
    """The payload rules of recorder.toml.

    Payloads of reserved keys (private keys and keys of connections) are omitted, unless a rule whose prefix begins with ``!/`` includes
    them:
    a rule for all keys must not record private messages by accident.
    """

    def __init__(self, keep: Keep = "whole", rules: Sequence[PayloadRule] = ()) -> None:
        """Use *keep* for keys that no rule matches."""
        base = [(b"", _limit(keep)), (_RESERVED, None)]
        # A prefix shorter than "!/" never matches a reserved key: the rule for reserved keys is longer, so it has precedence.
        ordered = [*base, *((rule.keys.encode("utf-8", "surrogatepass"), _limit(rule.keep)) for rule in rules)]
        places = sorted(range(len(ordered)), key=lambda place: (len(ordered[place][0]), place), reverse=True)
        self._rules = [ordered[place] for place in places]
        self._known: dict[bytes, int | None] = {}

    def kept(self, key: bytes, payload: bytes) -> bytes | None:
        """Return the part of *payload* to record for *key*: all of it, its beginning, or None."""
        try:
            limit = self._known[key]
        except KeyError:
            limit = self._look_up(key)
        if limit is None:
            return None
        return payload if len(payload) <= limit else payload[:limit]

    def _look_up(self, key: bytes) -> int | None:
        """Return the maximum number of bytes for *key*, None if the payload is omitted, and cache it."""
        limit = next(limit for prefix, limit in self._rules if key.startswith(prefix))
        if len(self._known) >= _REMEMBERED_KEYS:
            self._known.clear()
        self._known[key] = limit
        return limit


def _limit(keep: Keep) -> int | None:
    """Return the maximum number of bytes, None if the payload is omitted."""
    return MAX_PACKET_BYTES if keep == "whole" else None if keep == "none" else keep
