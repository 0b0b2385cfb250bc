"""Which messages wait for slow recipients, and what the bus is told for that. No I/O. Spec: sbus-protocol(7) §6 and §7, ``pace/on``.

Pacing is a property of the connection. So a message that waits and one that does not go out on one connection, in their order, with
``pace/on`` or ``pace/off`` between them; a run of messages of one kind needs one such packet. A second connection would not keep their
order, and would be another sender.
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
    """What the bus has been told of pacing on the connection that there is, and what it is told next."""

    __slots__ = ("_outgoing", "always", "is_known", "is_on")

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self.always = False
        """Whether every message waits, and not only those that are :class:`Paced`."""
        self.is_on = False
        """Whether the next packet is sent by a paced connection."""
        self.is_known = False
        """Whether the bus, this one or the one before it, has said that it knows pacing: then it is asked again on each new connection."""

    def prepare(self, packet: bytes) -> bool:
        """Put what must stand in front of *packet* into ``outgoing``; return whether there is anything."""
        wanted = self.always or isinstance(packet, Paced)
        if wanted == self.is_on:
            return False
        self.is_on = wanted
        self._outgoing.put(_ON if wanted else _OFF)
        return True

    def told(self, key: bytes) -> bool:
        """Take note of a control message that the program has sent itself; return whether it is about pacing."""
        if key not in (controls.PACE_ON, controls.PACE_OFF):
            return False
        self.always = self.is_on = key == controls.PACE_ON
        return True

    def disconnected(self) -> None:
        """Forget the pacing of the connection that ended: a new connection is not paced."""
        self.is_on = False

    def restore(self, posts: list[bytes]) -> None:
        """Put back *posts* that the last connection did not send, each with its own pacing."""
        for packet in posts:
            self.prepare(packet)
            self._outgoing.restore((packet,))


class PacingCall(Call):
    """``!/bus/features``, of a client that wants pacing; it fails with Unsupported where the bus does not know that."""

    __slots__ = ("_pacing",)

    def __init__(self, pacing: Pacing) -> None:
        super().__init__(f"CMSG {repr(controls.FEATURES)[1:]}", Expects.ANSWER, controls.FEATURES)
        self._pacing = pacing

    def finish(self, answer: bytes = b"", error: SbusError | None = None) -> None:
        """Settle the call, unless it is settled already."""
        if not self.is_done:
            is_told = error is None or isinstance(error, RemoteRefusal | Unanswered)
            if is_told and PACE_FEATURE not in answer.split(b"\n"):
                error = Unsupported("pacing", "publish without wait and connect without pace")
            self._pacing.is_known |= error is None
        super().finish(answer, error)
