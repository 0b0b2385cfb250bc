# Made from sbus/asyncio/control.py by "make faces": edit that.
"""Control messages of a program to the bus: a part of a bus. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

from collections.abc import Iterable

from sbus import operations
from sbus.encoding import Data
from sbus.session import Session
from sbus.sync.link import SyncLink


class ControlMethods:
    """Control messages, a part of a bus."""

    _link: SyncLink
    _session: Session

    def control(self, key: str | bytes, payload: Data | None = None) -> bytes:
        """Send a control message, and return the payload of its response. Spec: sbus-protocol(7) §6.

        Raises:
            RemoteRefusal: the bus refused it.
            Unanswered: the bus accepted it and does not answer it: send it with ``tell``.
            AnswerLost, TimedOut, Disconnected, InboxFull: no response; it is not known whether the bus has acted.
        """
        return self._link.run(operations.control(self._session, key, payload, self._link.timeout))

    def tell(self, key: str | bytes, payload: Data | None = None) -> None:
        """Send a control message that has no response, such as ``echo/off``. If it is refused, ``on_refused`` is called,
        also with ENOSYS for one that the bus does not know.

        A mode is set again on each new connection. Raises what ``publish`` raises.
        """
        self._link.run(operations.tell(self._session, key, payload))

    def report_lost(self, patterns: Iterable[str | bytes], count: int) -> None:
        """Notify each connection that has one of *patterns* that *count* messages for it are lost; 0 means an unknown number.

        For services that bring messages to the bus: the notice has its place among the messages of this connection, and each
        connection gets one. A pattern is compared as it is, without wildcards. The user of the service needs the right ``vouch``.
        If the bus refuses the report, ``on_refused`` is called. A bus without the feature ``vouch`` ignores it.

        Raises:
            ProtocolError: *patterns* has none or more than 64, one has a NUL, or *count* has more than 15 digits.
            TimedOut, Disconnected: as ``publish``.
        """
        self._link.run(operations.report_lost(patterns, count))
