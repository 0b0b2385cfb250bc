"""Whether a session and its bus send batches to each other. No I/O. Spec: sbus-protocol(7) §6, ``!/bus/features`` and ``batch/on``."""

from __future__ import annotations

from sbusd.client.bus_queries import FeaturesCall
from sbusd.client.outgoing import Outgoing
from sbusd.client.pending_replies import Call
from sbusd.client.reconnection import SavedSettings
from sbusd.client.statistics import SessionCounters
from sbusd.protocol import controls
from sbusd.protocol.batches import BATCH_FEATURE
from sbusd.protocol.packets import control_packet


class Batching:
    """The negotiation of batches in both directions; if not *is_wanted*, nothing is negotiated."""

    __slots__ = ("_counters", "_is_wanted", "_outgoing", "_settings", "may_ask")

    def __init__(self, outgoing: Outgoing, settings: SavedSettings, counters: SessionCounters, *, is_wanted: bool) -> None:
        self._outgoing = outgoing
        self._settings = settings
        self._counters = counters
        self._is_wanted = is_wanted
        self.may_ask = is_wanted
        """Whether the bus may be asked whether it takes batches: not if it has been."""

    def request(self) -> None:
        """Request batches from the bus, unless the program has chosen a mode itself."""
        if self._is_wanted and not self._settings.has(controls.BATCH_ON):
            packet = control_packet(controls.BATCH_ON)
            self._outgoing.put(packet)
            self._settings.save(controls.BATCH_ON, packet)

    def question(self) -> Call:
        """Return the call that asks whether the bus takes batches; it sets ``outgoing.takes_batches``."""
        self.may_ask = False
        self._outgoing.takes_batches = None
        return FeaturesCall(self._learn)

    def disconnected(self) -> None:
        """Forget the response of the connection that ended."""
        self._outgoing.takes_batches = False
        self.may_ask = self._is_wanted

    def _learn(self, features: frozenset[bytes] | None) -> None:
        """Note the features of the bus; None means unknown, and the bus may be asked again."""
        self._outgoing.takes_batches = features is not None and BATCH_FEATURE in features
        self._counters.batchless += features is not None and BATCH_FEATURE not in features
        self.may_ask = features is None
