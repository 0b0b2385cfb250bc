"""Reconnection: the times of attempts, and the modes that a new connection needs. No I/O.

Spec: sbus-protocol(7) §6.
"""

from __future__ import annotations

import random

from sbus.protocol import controls

FIRST_SECONDS = 0.05
"""Delay after the first failed attempt."""

MOST_SECONDS = 5.0
"""Longest delay, short enough for a person who restarts a bus by hand. A connection that lasted this long resets the delays."""

_RANDOM = random.SystemRandom()

_GROUPS = frozenset({b"echo", b"sender", b"order", b"batch", b"blocking/soft", b"blocking/hard", b"tap"})
"""The part of a mode's key before the last ``/``: the last mode of each group applies."""


class ReconnectAttempts:
    """The attempts to reconnect to a bus. All times are in seconds of the caller's clock."""

    __slots__ = ("_connected_at", "_failures", "attempts", "due", "since")

    def __init__(self, now: float) -> None:
        self.attempts = 0
        """Attempts since the connection was lost."""
        self.due = now
        """Time of the next attempt."""
        self.since = now
        """Time when the connection was lost."""
        self._connected_at = now
        self._failures = 0

    def lost(self, now: float) -> None:
        """Note that the connection was lost: the next attempt is due at once, unless the connection was very short."""
        if now - self._connected_at >= MOST_SECONDS:
            self._failures = 0
        self.since = now
        self.attempts = 0
        self.due = now + (self._delay() if self._failures else 0.0)

    def attempt(self, now: float) -> None:
        """Note an attempt at *now*, and set ``due``, the time of the next attempt if this one fails."""
        self.attempts += 1
        self._failures += 1
        self.due = now + self._delay()

    def connected(self, now: float) -> None:
        """Note that the last attempt succeeded."""
        self._connected_at = now

    def _delay(self) -> float:
        """Return a random delay: many clients lose the same bus at the same moment, and should not all reconnect at the same moment."""
        most = min(MOST_SECONDS, FIRST_SECONDS * (1 << min(self._failures - 1, 10)))
        return most * _RANDOM.uniform(0.5, 1.0)


class SavedSettings:
    """The packets that set the modes of this connection, saved for the next one."""

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: dict[bytes, bytes] = {}

    @property
    def packets(self) -> tuple[bytes, ...]:
        """The packets that set all modes on a new connection."""
        return tuple(self._packets.values())

    def has(self, key: bytes) -> bool:
        """Return whether a mode of the group of *key* is set."""
        return key.rpartition(b"/")[0] in self._packets

    def of(self, key: bytes) -> bytes:
        """Return the packet that sets the mode of the group of *key*; empty if none is set."""
        return self._packets.get(key.rpartition(b"/")[0], b"")

    def forget(self, key: bytes) -> None:
        """Forget the mode of the group of *key*."""
        self._packets.pop(key.rpartition(b"/")[0], None)

    def save(self, key: bytes, packet: bytes) -> None:
        """Save *packet*, if its *key* sets a mode."""
        group, _, last = key.rpartition(b"/")
        if key == controls.NAME:
            self._packets[key] = packet
        elif group in _GROUPS:
            if key in (controls.TAP_OFF, controls.SENDER_OFF):
                self._packets.pop(group, None)
            elif last:
                self._packets[group] = packet
