"""Optional features of the bus: batches, pacing, turns of users and queue groups. No I/O.

Spec: sbus-protocol(7) §6, ``!/bus/features``, ``batch/on`` and ``pace/on``, and §7.

With pacing, messages wait for slow recipients. Pacing is a property of the connection. Messages with and without pacing leave on one
connection, in their order, with ``pace/on`` or ``pace/off`` between them; consecutive messages of one kind need only one such packet. A
second connection would not keep the order, and would be another sender.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sbus.bus_calls import Call, Expects
from sbus.errors import RemoteRefusal, SbusError, Unanswered, Unsupported
from sbus.outgoing import Outgoing
from sbus.protocol import controls
from sbus.protocol.packets import BATCH_FEATURE, control_packet
from sbus.reconnection import SavedSettings
from sbus.statistics import Statistics

PACE_FEATURE = b"pace"
GROUP_FEATURE = b"group"

FAIR = control_packet(controls.ORDER_FAIR)
_IN_ORDER = control_packet(controls.ORDER_QUEUE)

_ON = control_packet(controls.PACE_ON)
_OFF = control_packet(controls.PACE_OFF)


class Batching:
    """The negotiation of batches in both directions; if not *is_wanted*, nothing is negotiated."""

    __slots__ = ("_counters", "_is_wanted", "_outgoing", "_settings", "may_ask")

    def __init__(self, outgoing: Outgoing, settings: SavedSettings, counters: Statistics, *, is_wanted: bool) -> None:
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


class Turns:
    """The order ``fair`` of a connection that serves: the users whose requests the bus has queued take turns. Spec: sbus-protocol(7) §7."""

    __slots__ = ("_is_on", "_outgoing", "_settings")

    def __init__(self, outgoing: Outgoing, settings: SavedSettings) -> None:
        self._outgoing = outgoing
        self._settings = settings
        self._is_on = False

    def begin(self) -> Call | None:
        """Return the call that sets the order, with the packet :data:`FAIR`; None if the program has chosen an order itself."""
        if self._settings.has(controls.ORDER_FAIR):
            return None
        call = Call("CMSG 'order/fair'", Expects.SILENCE)
        call.on_done.append(partial(self._begun, call))
        return call

    def end(self) -> None:
        """Put the order ``queue`` into ``outgoing``, if :meth:`begin` has set the other: a barrier then comes after all queued requests."""
        if self._is_on and self._settings.of(controls.ORDER_FAIR) == FAIR:
            self._outgoing.put(_IN_ORDER)
            self._settings.forget(controls.ORDER_FAIR)
        self._is_on = False

    def _begun(self, call: Call) -> None:
        """Set the order also on later connections, unless the bus is too old to know it."""
        if call.error is None:
            self._is_on = True
            self._settings.save(controls.ORDER_FAIR, FAIR)


class FeaturesCall(Call):
    """``!/bus/features``; *learn* gets their names: none if the bus does not know the question, None if the response was lost."""

    __slots__ = ("_learn",)

    def __init__(self, learn: Callable[[frozenset[bytes] | None], None]) -> None:
        super().__init__(f"CMSG {repr(controls.FEATURES)[1:]}", Expects.ANSWER, controls.FEATURES)
        self._learn = learn

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done."""
        if not self.is_done:
            is_known = error is None or isinstance(error, RemoteRefusal | Unanswered)
            self._learn(frozenset(answer.split(b"\n")) if is_known else None)
        super().finish(answer, error)


class Paced(bytes):
    """A MSG that waits for slow recipients."""

    __slots__ = ()


class Pacing:
    """The pacing of the present connection."""

    __slots__ = ("_outgoing", "always", "is_known", "is_on")

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self.always = False
        """Whether every message waits, not only :class:`Paced` ones."""
        self.is_on = False
        """Whether the connection is paced when the next packet is sent."""
        self.is_known = False
        """Whether the bus, on this connection or an earlier one, knew pacing; if so, it is asked again on each new connection."""

    def prepare(self, packet: bytes) -> bool:
        """Put the control packet that *packet* needs before it, if any, into ``outgoing``; return whether there is one."""
        wanted = self.always or isinstance(packet, Paced)
        if wanted == self.is_on:
            return False
        self.is_on = wanted
        self._outgoing.put(_ON if wanted else _OFF)
        return True

    def set_by(self, key: bytes) -> bool:
        """Note a control message that the program has sent itself; return whether it sets the pacing."""
        if key not in (controls.PACE_ON, controls.PACE_OFF):
            return False
        self.always = self.is_on = key == controls.PACE_ON
        return True

    def note_known(self) -> None:
        """Note that the bus knows pacing."""
        self.is_known = True

    def disconnected(self) -> None:
        """Forget the pacing of the connection that ended: a new connection is not paced."""
        self.is_on = False

    def restore(self, posts: list[bytes]) -> None:
        """Put back *posts* that the last connection did not send, with their pacing."""
        for packet in posts:
            self.prepare(packet)
            self._outgoing.restore((packet,))


class RequiredFeature(Call):
    """``!/bus/features``, of a client that needs a feature; it fails with Unsupported if the bus does not know it.

    *words* name the feature in that error, and *advice* says what to do without it. *learn*, if any, is called if the bus knows it.
    """

    __slots__ = ("_advice", "_feature", "_learn", "_words")

    def __init__(self, feature: bytes, words: str, advice: str, learn: Callable[[], None] | None = None) -> None:
        super().__init__(f"CMSG {repr(controls.FEATURES)[1:]}", Expects.ANSWER, controls.FEATURES)
        self._feature = feature
        self._words = words
        self._advice = advice
        self._learn = learn

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done."""
        if not self.is_done:
            is_known = error is None or isinstance(error, RemoteRefusal | Unanswered)
            if is_known and self._feature not in answer.split(b"\n"):
                error = Unsupported(self._words, self._advice)
            if error is None and self._learn is not None:
                self._learn()
        super().finish(answer, error)


def pacing_question(pacing: Pacing) -> RequiredFeature:
    """Return the call that fails unless the bus knows pacing."""
    return RequiredFeature(PACE_FEATURE, "pacing", "publish without wait and connect without pace", pacing.note_known)


def group_question() -> RequiredFeature:
    """Return the call that fails unless the bus knows queue groups."""
    return RequiredFeature(GROUP_FEATURE, "queue groups", "subscribe without group")
