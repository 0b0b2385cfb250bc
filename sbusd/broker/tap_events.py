"""The JSON lines that taps receive besides messages: events, denials and losses. Spec: sbus-protocol(7) §6, ``!/tap``.

The switch itself reports messages to taps. Without a tap, each method only asks the switch whether there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from sbusd.broker.json_encoding import encode, key_members
from sbusd.dataplane.contract import Switch
from sbusd.protocol import controls
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.errors import ErrorCode

MAX_DENIED_KEY_BYTES = 1_024
"""Longest part of a refused key in a line, as in the journal. The key itself can be as long as a packet."""

LOSS_UID = 0xFFFF_FFFE
"""The uid that is charged for lines about losses. It is the last uid that a process can have; its user shares the charge."""

_PACKETS = frozenset({b"MSG", b"SUB", b"UNSUB", b"CMSG"})


class TapEvents:
    """The lines of one bus with the credential prefix *prefix*. *clock* returns nanoseconds since 1970, for tests."""

    def __init__(self, switch: Switch, prefix: bytes, clock: Callable[[], int] = time.time_ns) -> None:
        self._switch = switch
        self._prefix = prefix
        self._clock = clock

    def event(self, kind: str, key: bytes, uid: int, facts: Mapping[str, object]) -> None:
        """Report an event with this *key*, caused by *uid*. Its *facts* include its time and connection."""
        if self._switch.is_tapped():
            self._switch.report(key, _line({"kind": kind, **facts}), uid=uid)

    def loss(self, connection: int, credentials: Credentials, count: int) -> None:
        """Report that *count* packets for a connection were lost."""
        # Other users cause a client's losses, so the client is not charged for these lines.
        self._report(controls.LOST, "loss", connection, credentials, {"count": count}, payer=LOSS_UID)

    def rejection(self, connection: int, credentials: Credentials, code: ErrorCode, reason: str) -> None:
        """Report that a connection was rejected."""
        self._report(b"", "denial", connection, credentials, {"packet": "CONNECT", "error": code.name, "reason": reason, "count": 1})

    def denial(self, connection: int, credentials: Credentials, packet: bytes, code: ErrorCode, reason: str, *, count: int = 1) -> None:
        """Report that *count* packets like *packet* were refused. The beginning of the packet is sufficient."""
        word, _, rest = packet[: MAX_DENIED_KEY_BYTES + 8].partition(b" ")
        is_known = word in _PACKETS
        key = rest.partition(b"\0")[0][:MAX_DENIED_KEY_BYTES] if is_known else b""
        facts = {"packet": word.decode() if is_known else "", "error": code.name, "reason": reason, "count": count}
        self._report(key, "denial", connection, credentials, facts | (key_members("key", key) if is_known else {}))

    def _report(
        self, key: bytes, kind: str, connection: int, credentials: Credentials, facts: Mapping[str, object], *, payer: int | None = None
    ) -> None:
        """Send a line to the taps whose pattern matches *key*. The uid *payer* is charged, or with None the connection's user."""
        if self._switch.is_tapped():
            origin = {"kind": kind, "time": self._clock(), "id": connection, "cred": credentials.key(self._prefix).decode()}
            self._switch.report(key, _line({**origin, **facts}), uid=credentials.uid if payer is None else payer)


def _line(facts: Mapping[str, object]) -> bytes:
    """Return the packet of one line."""
    return b"CMSG %b\0%b\n" % (controls.TAP, encode(facts))
