"""Names of Redis keys. Those of the founding document come first. All others begin with ``msgbus.system.relay.``.

No command can collide with them: commands whose queue would begin with ``msgbus.system.`` are rejected.
"""

from __future__ import annotations

LOCAL = "msgbus.system.local"
"""List: requests of local clients."""
REMOTE = "msgbus.system.remote"
"""List: requests of remote hosts, and of this host to itself."""
REPLY = "msgbus.system.reply"
"""List: responses of local applications and of remote hosts."""
BACKLOG = "msgbus.system.backlog"
"""Hash: requests that wait for their response, by ``uid``, with the ``ret`` of the client."""

ABANDONED = "msgbus.system.relay.abandoned"
"""List: requests of remote hosts that a relay had passed to a bus service when it died."""

QUEUES = (LOCAL, REMOTE, REPLY, ABANDONED)
"""The queues from which a relay takes messages."""

BUS = "bus"
"""Used in place of a queue name, for the list of requests that a relay has passed to bus services."""

DEADLINES = "msgbus.system.relay.deadlines"
"""Sorted set: expiry time of each request in the backlog."""
TWINS = "msgbus.system.relay.twins"
"""Set: hosts with waiting messages."""
COUNTERS = "msgbus.system.relay.counters"
"""Hash: number of events by name."""
RELAYS = "msgbus.system.relay.relays"
"""Set: relays that share this Redis."""
REFUSED = "msgbus.system.relay.refused"
"""List: malformed local messages that had no return queue, kept for inspection; bounded."""
PEERS = "msgbus.system.relay.peers"
"""Set: hosts to which a message was sent, successfully or not."""


def command_queue(command: str) -> str:
    """Return the list from which applications take requests for *command*."""
    return f"msgbus.{command}"


def counter(twin: int) -> str:
    """Return the key of the number of requests to *twin* so far, the second half of their ``uid``."""
    return f"msgbus.system.relay.counter:{twin}"


def waiting(twin: int) -> str:
    """Return the sorted set of messages for *twin* by the time of their next attempt."""
    return f"msgbus.system.retry:{twin}"


def sending(twin: int) -> str:
    """Return the sorted set of messages that relays are sending to *twin*, by the time at which the claim expires."""
    return f"msgbus.system.relay.sending:{twin}"


def taken(relay: str, queue: str) -> str:
    """Return the list of messages that *relay* has taken from *queue* and not yet processed."""
    return f"msgbus.system.relay.taken:{relay}:{queue}"


def answers(relay: str) -> str:
    """Return the list of responses to the bus calls of *relay*."""
    return f"msgbus.system.relay.answers:{relay}"


def lease(relay: str) -> str:
    """Return the key of the lease of *relay*."""
    return f"msgbus.system.relay.lease:{relay}"


def nonce(twin: int, value: str) -> str:
    """Return the key that marks the nonce *value* of *twin* as used."""
    return f"msgbus.system.relay.nonce:{twin}:{value}"


def peer(twin: int) -> str:
    """Return the hash with the state of *twin*."""
    return f"msgbus.system.relay.peer:{twin}"
