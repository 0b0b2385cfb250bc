"""What the link publishes about itself: ``link/host/<name>``, ``link/network`` and ``link/lost/<origin>``. Spec: sbus-link(8)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sbusd.link.network.counters import NetworkState

MAX_PATTERNS = 64
"""Patterns that one event about a loss lists."""

MAX_ORIGINS = 1_024
"""Hosts of which losses are kept until the next events; the losses of others are counted under no name."""

NETWORK_UNAVAILABLE = "network unavailable"
"""Why hosts are gone while this host is not connected."""

Event = tuple[str, Mapping[str, object]]
"""A key, and an object for JSON."""


@dataclass(slots=True)
class _Loss:
    """Losses of one host since the last events. ``is_exact``: whether none of the numbers was unknown."""

    patterns: set[bytes] = field(default_factory=set)
    count: int = 0
    is_exact: bool = True


class Events:
    """Collects what has happened. However much that is, `take` returns few events, of bounded size."""

    def __init__(self) -> None:
        self._alive: frozenset[str] = frozenset()
        self._is_connected = False
        self._losses: dict[str, _Loss] = {}

    def lost(self, origin: str, patterns: Sequence[bytes], count: int) -> None:
        """Note *count* lost messages of *origin* for *patterns*; 0 is an unknown number, and an empty *origin* an unknown host."""
        if origin not in self._losses and len(self._losses) >= MAX_ORIGINS:
            origin = ""
        loss = self._losses.setdefault(origin, _Loss())
        loss.patterns.update(patterns[: MAX_PATTERNS - len(loss.patterns)])
        loss.count += count
        loss.is_exact = loss.is_exact and count > 0

    def take(self, alive: Iterable[str], network: NetworkState, reason: str) -> list[Event]:
        """Return what has happened since the last call, up to the present state. *reason* is why the network is unavailable."""
        events: list[Event] = []
        if network.connected is not self._is_connected:
            self._is_connected = network.connected
            words = {"event": "up", "server": network.server} if network.connected else {"event": "down", "reason": reason}
            events.append(("link/network", words))
        now = frozenset(alive)
        why = "no heartbeats" if network.connected else NETWORK_UNAVAILABLE
        events += [(f"link/host/{name}", {"event": "down", "host": name, "reason": why}) for name in sorted(self._alive - now)]
        events += [(f"link/host/{name}", {"event": "up", "host": name}) for name in sorted(now - self._alive)]
        self._alive = now
        losses, self._losses = self._losses, {}
        events += [_event(origin, loss) for origin, loss in losses.items()]
        return events


def encode(event: Event) -> bytes:
    """Return the object of *event* as JSON."""
    return json.dumps(event[1]).encode()


def _event(origin: str, loss: _Loss) -> Event:
    """Return the event about *loss*. The number is 0 if it is unknown."""
    patterns = [pattern.decode("utf-8", "backslashreplace") for pattern in sorted(loss.patterns)]
    words = {"host": origin, "patterns": patterns, "count": loss.count if loss.is_exact else 0}
    return f"link/lost/{origin}" if origin else "link/lost", words
