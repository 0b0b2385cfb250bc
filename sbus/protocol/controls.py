"""The keys of control messages, as after ``CMSG ``. Spec: sbus-protocol(7) §6."""

from __future__ import annotations

# Sent by a client, answered with the same key.
WHOAMI = b"!/cred/whoami"
FEATURES = b"!/bus/features"
PING = b"!/bus/ping"
STATS = b"!/bus/stats"
CONNECTIONS = b"!/bus/connections"
USERS = b"!/bus/users"
TOTALS = b"!/bus/totals"
"""``!/bus/totals [NUL <uid>]``: what each user has done since the counters began, by pages, users without a connection too."""
SUBSCRIPTIONS = b"!/bus/subscriptions"
"""``!/bus/subscriptions [NUL <place>]``: the patterns of each connection, by pages; for users that may see all connections or
tap the bus."""
TRACE = b"!/bus/trace"
"""``!/bus/trace NUL <key>``: which connections would get a message with that key, and why others would not.

The owner sees all connections; others see those of their own user."""
EXPLAIN = b"!/bus/explain"
"""``!/bus/explain NUL <uid> NUL publish|subscribe NUL <key>``: whether that user is permitted to, and why.

Owners and users with the right ``deliver`` may ask about any user; others about themselves, and with an empty uid about a user that no
rule names."""

ADDRESS = b"!/conn/whoami"
MEMBERS = b"!/bus/members"
"""``!/bus/members NUL <key>``: the connections that a message with that key would reach now."""

# Sent by a client, not answered.
ECHO_ON = b"echo/on"
ECHO_OFF = b"echo/off"
RECEIPT_ALWAYS = b"receipt/always"
"""``receipt/always NUL <token>``: the bus answers the next MSG of this connection with :data:`RECEIPT`."""
RECEIPT_RECIPIENTS = b"receipt/recipients"
"""As ``receipt/always``, with the numbers of the connections to which the message was routed."""
RECEIPT_UNDELIVERABLE = b"receipt/undeliverable"
SENDER_ON = b"sender/on"
SENDER_OFF = b"sender/off"
TAP_ON = b"tap/on"
"""``tap/on NUL <pattern>``: from now on the bus reports its traffic to this connection with :data:`TAP`."""
TAP_OFF = b"tap/off"
ORDER_QUEUE = b"order/queue"
ORDER_FAIR = b"order/fair"
"""From now on, the users whose messages are queued for this client take turns. For the other orders see the contract of the data plane."""
PACE_ON = b"pace/on"
"""From now on, messages of this client wait for slow recipients."""
PACE_OFF = b"pace/off"

NAME = b"name"
"""``name NUL <name>``: a label for this connection, shown to people; see :mod:`sbus.protocol.credentials`."""

GROUP_JOIN = b"group/join"
"""``group/join NUL <group> NUL <pattern>``: of all members of the user's group with a matching pattern one gets each message, as
:data:`GROUP`."""
GROUP_LEAVE = b"group/leave"
"""``group/leave NUL <group> NUL <pattern>``: undoes one :data:`GROUP_JOIN`."""

LOST_FOR = b"lost/for"
"""``lost/for NUL <count> NUL <pattern> [NUL <pattern>…]``: messages for the subscribers of these patterns are lost; see
:mod:`sbus.protocol.vouching`."""

TO = b"!/to/"
"""The prefix of the key of a direct message: ``!/to/<id> NUL <packet>`` goes to that connection alone; see
:mod:`sbus.protocol.direct_messages`."""

BATCH_ON = b"batch/on"
"""From now on, several packets for this client may arrive in one :data:`BATCH`."""
BATCH_OFF = b"batch/off"

# Sent by both.
BATCH = b"!/batch"
"""Payload: of each packet its length and the packet; see :mod:`sbus.protocol.packets`."""

# Sent by the bus, without a request.
ERROR = b"!/bus/error"
LOST = b"!/bus/lost"
"""Payload: decimal number of packets for this client that the bus discarded at this place."""
REPLACED = b"!/bus/replaced"
"""Payload: decimal number of queued messages for this client that newer ones replaced, with the order ``latest``."""
RECEIPT = b"!/bus/receipt"
"""Payload: the token, NUL, and the decimal number of connections that the MSG was delivered to or is queued for.

The number is ``-`` if the key is private and its recipients are not disclosed to this client."""
FROM = b"!/from/"
"""The prefix of the key of a MSG with its sender: ``!/from/<id>/<cred> NUL <the MSG packet>``.

Sent by a client: of a MSG for which it vouches, ``!/from/<words>/<cred> NUL <the MSG packet>``; see :mod:`sbus.protocol.vouching`."""
GROUP = b"!/group/"
"""The prefix of the key of a MSG for a member of a group: ``!/group/<group> NUL <the packet without it>``."""
TAP = b"!/tap"
"""Payload: one JSON line, and for a message the MSG packet after it."""
