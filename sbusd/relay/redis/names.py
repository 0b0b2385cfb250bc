"""The names of what a relay has in Redis. Those of the founding document stand first; all else lies under ``msgbus.system.relay.``,
where no command can reach: its queue would be called ``msgbus.system.…``, and such commands are refused.
"""

from __future__ import annotations

LOCAL = "msgbus.system.local"
"""List: requests of this host's clients."""
REMOTE = "msgbus.system.remote"
"""List: requests of other hosts, and of this one to itself."""
REPLY = "msgbus.system.reply"
"""List: answers, of this host's applications and of other hosts."""
BACKLOG = "msgbus.system.backlog"
"""Hash: each request that waits for its answer, by ``uid``, with the ``ret`` that its client gave."""

ABANDONED = "msgbus.system.relay.abandoned"
"""List: requests of other hosts that a relay had given to a service of the bus when it died."""

QUEUES = (LOCAL, REMOTE, REPLY, ABANDONED)
"""What a relay takes messages from."""

BUS = "bus"
"""In the place of a queue: what a relay has given to a service of the bus lies in its list for that."""

DEADLINES = "msgbus.system.relay.deadlines"
"""Sorted set: when each request of the backlog expires."""
TWINS = "msgbus.system.relay.twins"
"""Set: the twins that messages wait for."""
COUNTERS = "msgbus.system.relay.counters"
"""Hash: what happened, and how often."""
RELAYS = "msgbus.system.relay.relays"
"""Set: the relays that share this Redis."""
REFUSED = "msgbus.system.relay.refused"
"""List: messages of this host that were none and could not be answered, for a person to look at; bounded."""
PEERS = "msgbus.system.relay.peers"
"""Set: twins that were tried."""


def command_queue(command: str) -> str:
    """Return the list that applications take requests for *command* from."""
    return f"msgbus.{command}"


def counter(twin: int) -> str:
    """Return the number of requests to *twin* so far: the second half of their ``uid``."""
    return f"msgbus.system.relay.counter:{twin}"


def waiting(twin: int) -> str:
    """Return the sorted set of messages that wait for their next try at *twin*, by its time."""
    return f"msgbus.system.retry:{twin}"


def sending(twin: int) -> str:
    """Return the sorted set of messages that a relay sends to *twin*, by when it is taken to have died over it."""
    return f"msgbus.system.relay.sending:{twin}"


def taken(relay: str, queue: str) -> str:
    """Return the list of messages that *relay* has taken from *queue* and not dealt with."""
    return f"msgbus.system.relay.taken:{relay}:{queue}"


def answers(relay: str) -> str:
    """Return the list of answers for the calls that came to *relay* over the bus."""
    return f"msgbus.system.relay.answers:{relay}"


def lease(relay: str) -> str:
    """Return the sign of life of *relay*."""
    return f"msgbus.system.relay.lease:{relay}"


def nonce(twin: int, value: str) -> str:
    """Return the sign that *twin* has used *value*."""
    return f"msgbus.system.relay.nonce:{twin}:{value}"


def peer(twin: int) -> str:
    """Return what is known of *twin*: a hash."""
    return f"msgbus.system.relay.peer:{twin}"
