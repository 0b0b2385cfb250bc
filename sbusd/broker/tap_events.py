"""What taps are told of beside messages, as JSON lines: events, denials and losses. Spec: sbus-protocol(7) §6, ``!/tap``.

Messages are told by the switch itself. Without a tap, a line costs the question whether there is one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from sbusd.broker.json_encoding import spell
from sbusd.dataplane.contract import Switch
from sbusd.protocol import controls
from sbusd.protocol.credentials import Credentials
from sbusd.protocol.errors import ErrorCode

TOLD_KEY_BYTES = 1_024
"""Of a key that was refused, as much as the journal keeps too: it can be as long as a packet."""

LOSS_UID = 0xFFFF_FFFE
"""The uid that losses are charged to. It is the last that a process can have; one that has it shares with them."""

_WORDS = frozenset({b"MSG", b"SUB", b"UNSUB", b"CMSG"})


class Tapping:
    """The lines of one bus behind the credential prefix *prefix*. *clock* is nanoseconds since 1970, for tests."""

    def __init__(self, switch: Switch, prefix: bytes, clock: Callable[[], int] = time.time_ns) -> None:
        self._switch = switch
        self._prefix = prefix
        self._clock = clock

    def event(self, kind: str, key: bytes, uid: int, facts: Mapping[str, object]) -> None:
        """Report an event with this *key*, which *uid* has caused, and whose *facts* include its time and connection."""
        if self._switch.is_tapped():
            self._switch.report(key, _line({"kind": kind, **facts}), uid=uid)

    def loss(self, connection: int, who: Credentials, count: int) -> None:
        """Report that *count* packets for a connection were lost."""
        # Others cause a client's losses, so the lines are charged to nobody's share but one of their own.
        self._tell(controls.LOST, "loss", connection, who, {"count": count}, payer=LOSS_UID)

    def refused_connection(self, connection: int, who: Credentials, code: ErrorCode, words: str) -> None:
        """Tell that somebody was not let in."""
        self._tell(b"", "denial", connection, who, {"packet": "CONNECT", "error": code.name, "reason": words, "count": 1})

    def denial(self, connection: int, who: Credentials, packet: bytes, code: ErrorCode, words: str, *, count: int = 1) -> None:
        """Tell that *packet*, of which the beginning will do, and others like it, *count* in all, were refused."""
        word, _, rest = packet[: TOLD_KEY_BYTES + 8].partition(b" ")
        is_known = word in _WORDS
        key = rest.partition(b"\0")[0][:TOLD_KEY_BYTES] if is_known else b""
        facts = {"packet": word.decode() if is_known else "", "error": code.name, "reason": words, "count": count}
        self._tell(key, "denial", connection, who, facts | (spell("key", key) if is_known else {}))

    def _tell(
        self, key: bytes, kind: str, connection: int, who: Credentials, facts: Mapping[str, object], *, payer: int | None = None
    ) -> None:
        """Report to the taps that *key* matches; *payer* is the uid that is charged, None: that of *who*."""
        if self._switch.is_tapped():
            head = {"kind": kind, "time": self._clock(), "id": connection, "cred": who.key(self._prefix).decode()}
            self._switch.report(key, _line({**head, **facts}), uid=who.uid if payer is None else payer)


def _line(facts: Mapping[str, object]) -> bytes:
    """Return the packet that tells *facts*."""
    return b"CMSG %b\0%b\n" % (controls.TAP, json.dumps(facts, separators=(",", ":")).encode())
