"""Pacing: messages that wait for slow recipients. No I/O. Spec: sbus-protocol(7) §6 and §7, ``pace/on``.

Pacing is a property of the connection. Messages with and without pacing leave on one connection, in their order, with ``pace/on`` or
``pace/off`` between them; consecutive messages of one kind need only one such packet. A second connection would not keep the order, and
would be another sender.
"""

from __future__ import annotations

from sbusd.client.errors import RemoteRefusal, SbusError, Unanswered, Unsupported
from sbusd.client.outgoing import Outgoing
from sbusd.client.pending_replies import Call, Expects
from sbusd.protocol import controls
from sbusd.protocol.packets import control_packet

PACE_FEATURE = b"pace"

_ON = control_packet(controls.PACE_ON)
_OFF = control_packet(controls.PACE_OFF)


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

    def disconnected(self) -> None:
        """Forget the pacing of the connection that ended: a new connection is not paced."""
        self.is_on = False

    def restore(self, posts: list[bytes]) -> None:
        """Put back *posts* that the last connection did not send, with their pacing."""
        for packet in posts:
            self.prepare(packet)
            self._outgoing.restore((packet,))


class PacingCall(Call):
    """``!/bus/features``, of a client that needs pacing; it fails with Unsupported if the bus does not know pacing."""

    __slots__ = ("_pacing",)

    def __init__(self, pacing: Pacing) -> None:
        super().__init__(f"CMSG {repr(controls.FEATURES)[1:]}", Expects.ANSWER, controls.FEATURES)
        self._pacing = pacing

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Finish the call, unless it is done."""
        if not self.is_done:
            is_known = error is None or isinstance(error, RemoteRefusal | Unanswered)
            if is_known and PACE_FEATURE not in answer.split(b"\n"):
                error = Unsupported("pacing", "publish without wait and connect without pace")
            self._pacing.is_known |= error is None
        super().finish(answer, error)
