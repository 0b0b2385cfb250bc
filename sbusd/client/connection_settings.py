"""The modes that a program has set on its connection, for the next one. No I/O. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from sbusd.protocol import controls

_GROUPS = frozenset({b"echo", b"sender", b"order", b"batch", b"blocking/soft", b"blocking/hard", b"tap"})
"""What stands before the last ``/`` of a mode: of each group the last one holds."""


class Modes:
    """The packets that set the modes."""

    __slots__ = ("_packets",)

    def __init__(self) -> None:
        self._packets: dict[bytes, bytes] = {}

    @property
    def packets(self) -> tuple[bytes, ...]:
        """What sets them all on a new connection."""
        return tuple(self._packets.values())

    def has(self, key: bytes) -> bool:
        """Return whether a mode of the group of *key* is set."""
        return key.rpartition(b"/")[0] in self._packets

    def remember(self, key: bytes, packet: bytes) -> None:
        """Take note of *packet*, if its *key* sets a mode."""
        group, _, last = key.rpartition(b"/")
        if group in _GROUPS:
            if key in (controls.TAP_OFF, controls.SENDER_OFF):
                self._packets.pop(group, None)
            elif last:
                self._packets[group] = packet
