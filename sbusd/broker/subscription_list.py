"""All subscriptions, in pages, for clients that tap the bus: ``!/bus/subscriptions``. Spec: sbus-protocol(7) §6.

A page is correct when it is made, and follows all earlier lines of the tap. So a client that reads all pages and applies the later events
knows all subscriptions, although they change meanwhile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbusd.broker.json_encoding import key_members
from sbusd.broker.roster import Roster
from sbusd.dataplane.contract import Switch
from sbusd.protocol.errors import ErrorCode, ProtocolError

PAGE_PATTERNS = 150
"""Patterns in one reply: about 20 kB of JSON, made in a third of a millisecond."""

PAGE_CLIENTS = 100
"""Maximum number of clients on a page, with or without patterns."""

PAGE_PATTERN_BYTES = 16 << 10
"""Bytes of patterns after which a page ends. JSON can encode one byte as six."""

_CURSOR = re.compile(rb"([0-9]{1,19})/((?:[0-9a-f]{2})*)")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The end of a page: after one pattern of one connection. Patterns are ordered by their bytes, connections by number."""

    connection: int
    pattern: bytes

    @classmethod
    def parse(cls, text: bytes) -> Cursor | None:
        """Return the cursor *text*, or None for the start if it is empty. Raises ProtocolError (EINVAL) for anything else."""
        if not text:
            return None
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise ProtocolError(ErrorCode.EINVAL, "the page to start after must be the value next of the previous page")
        return cls(int(match[1]), bytes.fromhex(match[2].decode()))

    def __str__(self) -> str:
        return f"{self.connection}/{self.pattern.hex()}"


def page(switch: Switch, roster: Roster, prefix: bytes, after: bytes) -> dict[str, object]:
    """Return a page of the subscriptions of all clients after the cursor *after*.

    Raises:
        ProtocolError: EINVAL, *after* is not a cursor.
    """
    cursor = Cursor.parse(after)
    found: list[dict[str, object]] = []
    size = 0
    before = 0
    for visited, client in enumerate(roster.after(cursor.connection - 1 if cursor else 0)):
        if visited == PAGE_CLIENTS:
            # Clients without patterns take time too. A cursor after the empty pattern is after a client that has no pattern.
            end = cursor if cursor is not None and cursor.connection == before else Cursor(before, b"")
            return {"after": after.decode(), "subscriptions": found, "next": str(end)}
        before = client.connection
        is_begun = cursor is not None and client.connection == cursor.connection
        cred = client.credentials.key(prefix).decode()
        # One more than fits, to know whether another page follows.
        for pattern in switch.patterns_after(client.connection, cursor.pattern if cursor and is_begun else None, PAGE_PATTERNS + 1):
            if len(found) == PAGE_PATTERNS or size >= PAGE_PATTERN_BYTES:
                return {"after": after.decode(), "subscriptions": found, "next": str(cursor)}
            found.append({"id": client.connection, "cred": cred, **key_members("pattern", pattern)})
            size += len(pattern)
            cursor = Cursor(client.connection, pattern)
    return {"after": after.decode(), "subscriptions": found, "next": None}
