"""The names of control messages, as they stand behind ``CMSG ``. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

# Asked by a client, answered under the same key.
WHOAMI = b"!/cred/whoami"
FEATURES = b"!/bus/features"
PING = b"!/bus/ping"
STATS = b"!/bus/stats"
CONNECTIONS = b"!/bus/connections"
USERS = b"!/bus/users"
TRACE = b"!/bus/trace"
"""``!/bus/trace NUL <key>``: who would get a message with that key, and who not and why. Owner: all; others: their own user's."""
EXPLAIN = b"!/bus/explain"
"""``!/bus/explain NUL <uid> NUL publish|subscribe NUL <key>``: whether that user may, and why. Owner: anyone; others: themselves."""

# Told to the server, not answered.
ECHO_ON = b"echo/on"
ECHO_OFF = b"echo/off"

# Said by the server, unasked.
ERROR = b"!/bus/error"
LOST = b"!/bus/lost"
"""Payload: decimal count of packets that were meant for this client here, and were discarded."""

RESERVED_HEAD = b"!/"
"""An unknown control under this head is an error (ENOSYS); any other unknown one is ignored, as the founding document allows."""
