"""The names of control messages, as they stand behind ``CMSG ``. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

# Asked by a client, answered under the same key.
WHOAMI = b"!/cred/whoami"
FEATURES = b"!/bus/features"
PING = b"!/bus/ping"
STATS = b"!/bus/stats"
CONNECTIONS = b"!/bus/connections"
USERS = b"!/bus/users"
SUBSCRIPTIONS = b"!/bus/subscriptions"
"""``!/bus/subscriptions [NUL <place>]``: who has which pattern, a page at a time; for those who may tap the bus."""
TRACE = b"!/bus/trace"
"""``!/bus/trace NUL <key>``: who would get a message with that key, and who not and why. Owner: all; others: their own user's."""
EXPLAIN = b"!/bus/explain"
"""``!/bus/explain NUL <uid> NUL publish|subscribe NUL <key>``: whether that user may, and why.

Owner: anyone; others: themselves, and with an empty uid somebody whom no rule names."""

ADDRESS = b"!/conn/whoami"
MEMBERS = b"!/bus/members"
"""``!/bus/members NUL <key>``: the connections that a message with that key would reach now."""

# Told to the server, not answered.
ECHO_ON = b"echo/on"
ECHO_OFF = b"echo/off"
RECEIPT_ALWAYS = b"receipt/always"
"""``receipt/always NUL <token>``: the next MSG of this connection is answered by :data:`RECEIPT`."""
RECEIPT_UNDELIVERABLE = b"receipt/undeliverable"
SENDER_ON = b"sender/on"
SENDER_OFF = b"sender/off"
TAP_ON = b"tap/on"
"""``tap/on NUL <pattern>``: from now on the connection is told of the bus's traffic by :data:`TAP`."""
TAP_OFF = b"tap/off"
PACE_ON = b"pace/on"
"""From now on messages of this client wait for slow recipients."""
PACE_OFF = b"pace/off"

BATCH_ON = b"batch/on"
"""From now on several packets for this client may come in one :data:`BATCH`."""
BATCH_OFF = b"batch/off"

# Said by both.
BATCH = b"!/batch"
"""Payload: of each packet its length and itself; see :mod:`sbusd.protocol.batches`."""

# Said by the server, unasked.
ERROR = b"!/bus/error"
LOST = b"!/bus/lost"
"""Payload: decimal count of packets that were meant for this client here, and were discarded."""
REPLACED = b"!/bus/replaced"
"""Payload: decimal count of messages that waited for this client and were replaced by newer ones, with the order ``latest``."""
RECEIPT = b"!/bus/receipt"
"""Payload: the token, NUL, and the decimal count of connections that the MSG was handed to, or waits for.

The count is ``-`` where the key is secret and the client may not know who gets what is sent to it."""
FROM = b"!/from/"
"""How the key begins under which a MSG comes with its sender: ``!/from/<id>/<cred> NUL <the MSG packet>``."""
TAP = b"!/tap"
"""Payload: one JSON line, and of a message the MSG packet behind it."""

RESERVED_HEAD = b"!/"
"""An unknown control under this head is an error (ENOSYS); any other unknown one is ignored, as the founding document allows."""
