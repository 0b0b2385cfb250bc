"""A bus made of answers, for tests of what is asked and shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sbus.protocol import controls

STATS: dict[str, Any] = {
    "scope": "bus",
    "version": "1.2",
    "switch": "compiled",
    "counted_since": 1_795_000_000.5,
    "counters": {
        "connections": 9,
        "subscriptions": 5,
        "queued_packets": 4,
        "queued_bytes": 900,
        "half_read_bytes": 0,
        "messages": 77,
        "lost_packets": 3,
    },
    "control": {"quota_refusals": 2, "configuration_faults": 1},
    "log": {"written": 10, "suppressed": 2, "dropped": 0, "waiting": 1},
}


def totals(uid: int | None, packets: int, **more: object) -> dict[str, Any]:
    """Return the totals of a user."""
    return {**({} if uid is None else {"uid": uid}), "received_packets": packets, "blocked_ms": 1_500, "quota_refusals": {}, **more}


class Answers:
    """A bus with *users*, by uid with their usage and totals, and the totals of forgotten ones."""

    def __init__(self, users: Mapping[int, tuple[dict[str, Any] | None, dict[str, Any]]], *, page: int = 2, **stats: Any) -> None:
        self.asked: list[tuple[bytes, bytes | None]] = []
        self.features = b"stats\ntotals\nusers"
        self._users = users
        self._page = page
        self._stats = {**STATS, **stats}

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the answer."""
        self.asked.append((key, payload))
        if key == controls.FEATURES:
            return self.features
        if key == controls.STATS:
            return json.dumps(self._stats).encode()
        place = 1 if key == controls.TOTALS else 0
        found = [each[place] for uid, each in sorted(self._users.items()) if uid > int(payload or b"-1")]
        items = [each for each in found if each is not None]
        rest = {"other": totals(None, 1_000) if payload is None else None} if place else {"hidden": 0}
        following = items[self._page - 1]["uid"] if len(items) > self._page else None
        return json.dumps({"users": items[: self._page], "next": following, **rest}).encode()
