"""Events that wait because devices report faster than the feed publishes. No I/O and no clock.

Of several waiting events with one key, the newest replaces the older ones, which it counts. A device that changes a thousand times a
second then costs one message for each time that the others had theirs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from sbusd.feeds.udev.devices import DeviceEvent

MAX_WAITING = 4_096
"""Most events that wait: further ones wait in the kernel, which reports when it has dropped some."""

_BURST_SECONDS = 0.1
"""The events of this time may be published at once."""


@dataclass(slots=True)
class _Waiting:
    """The newest event of a key, and the number of those that it replaces."""

    event: DeviceEvent
    coalesced: int = 0


class WaitingEvents:
    """Passes on at most *rate* events per second; *now* in its methods is in seconds of a monotonic clock."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._room = max(1.0, rate * _BURST_SECONDS)
        self._tokens = self._room
        self._counted = float("-inf")
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of events that wait."""
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether no more events should be read."""
        return len(self._waiting) >= MAX_WAITING

    def add(self, event: DeviceEvent) -> bool:
        """Add an event; return whether it replaces an older one."""
        found = self._waiting.pop(event.key, None)
        # At the end: of a device that was added, removed and added again, the last event is published last.
        self._waiting[event.key] = _Waiting(event, 0 if found is None else found.coalesced + 1)
        return found is not None

    def take(self, now: float) -> tuple[DeviceEvent, int] | None:
        """Return the next event and the number of older ones that it replaces; None if none may be published yet."""
        self._count(now)
        if not self._waiting or self._tokens < 1.0:
            return None
        self._tokens -= 1.0
        _, waiting = self._waiting.popitem(last=False)
        return waiting.event, waiting.coalesced

    def next_time(self) -> float | None:
        """Return when the next event may be published, None if none waits."""
        if not self._waiting:
            return None
        return self._counted + max(0.0, 1.0 - self._tokens) / self._rate

    def _count(self, now: float) -> None:
        """Note that time has passed."""
        self._tokens = min(self._room, self._tokens + max(0.0, now - self._counted) * self._rate)
        self._counted = now
