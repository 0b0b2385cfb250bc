"""The subscriptions that stand, in pages: for who taps the bus and came after them. Spec: sbus-protocol(7) §6, ``!/bus/subscriptions``.

A page tells what stands when it is made, and comes behind all that the tap told before: with the events that follow, whoever reads all
pages knows the subscriptions of the bus, though they change meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbusd.broker.json_encoding import spell
from sbusd.broker.roster import Roster
from sbusd.dataplane.contract import Switch
from sbusd.protocol.errors import ErrorCode, ProtocolError

PAGE_PATTERNS = 150
"""Patterns in one answer: about 20 kB of JSON, made in a third of a millisecond."""

PAGE_CLIENTS = 100
"""Clients after which a page ends, with patterns or without."""

PAGE_PATTERN_BYTES = 16 << 10
"""Bytes of patterns after which a page ends: JSON can make six bytes of one."""

_PLACE = re.compile(rb"([0-9]{1,19})/((?:[0-9a-f]{2})*)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ends: behind one pattern of one connection. Patterns have their order by their bytes, connections by number."""

    connection: int
    pattern: bytes

    @classmethod
    def parse(cls, text: bytes) -> Place | None:
        """Return the place that *text* is, None if it is empty: the start. Raises ProtocolError (EINVAL) for anything else."""
        if not text:
            return None
        match = _PLACE.fullmatch(text)
        if match is None:
            raise ProtocolError(ErrorCode.EINVAL, "the page to start after must be the value next of the previous page")
        return cls(int(match[1]), bytes.fromhex(match[2].decode()))

    def __str__(self) -> str:
        return f"{self.connection}/{self.pattern.hex()}"


def page(switch: Switch, roster: Roster, prefix: bytes, after: bytes) -> dict[str, object]:
    """Return the answer to a question for the subscriptions of all clients behind the place that *after* is.

    Raises:
        ProtocolError: EINVAL, *after* is no place.
    """
    place = Place.parse(after)
    told: list[dict[str, object]] = []
    size = 0
    before = 0
    for visited, client in enumerate(roster.after(place.connection - 1 if place else 0)):
        if visited == PAGE_CLIENTS:
            # Those without patterns cost time, too. Behind the empty pattern of one that has none is behind all that it has.
            end = place if place is not None and place.connection == before else Place(before, b"")
            return {"after": after.decode(), "subscriptions": told, "next": str(end)}
        before = client.connection
        is_begun = place is not None and client.connection == place.connection
        cred = client.credentials.key(prefix).decode()
        # One more than there is room for, to know whether anything follows.
        for pattern in switch.patterns_after(client.connection, place.pattern if place and is_begun else None, PAGE_PATTERNS + 1):
            if len(told) == PAGE_PATTERNS or size >= PAGE_PATTERN_BYTES:
                return {"after": after.decode(), "subscriptions": told, "next": str(place)}
            told.append({"id": client.connection, "cred": cred, **spell("pattern", pattern)})
            size += len(pattern)
            place = Place(client.connection, pattern)
    return {"after": after.decode(), "subscriptions": told, "next": None}
