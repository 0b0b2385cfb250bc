"""All that a bus knows, gathered from its parts: what must outlive a kill, and what an orderly end hands over besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from sbusd.broker.access import Acceptance
from sbusd.broker.control_messages import Answers
from sbusd.broker.log import BusLog
from sbusd.broker.presence import Presence
from sbusd.broker.process_watch import Lifelines
from sbusd.broker.quotas import Accounts
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch
from sbusd.protocol.errors import ErrorCode
from sbusd.state.records import BusState, ConnectionState, State


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a broker, for those who write down what it knows, and who bring it back."""

    switch: Switch
    roster: Roster
    accounts: Accounts
    acceptance: Acceptance
    lifelines: Lifelines
    answers: Answers
    presence: Presence
    journal: BusLog
    counts: Counter[str]
    admits: Callable[[int], bool]
    """Whether a user may be here."""
    may_tap: Callable[[Client], bool]
    """Whether a client may be told of all traffic."""
    place: Callable[[Client], None]
    """Tells the switch whose a client is."""
    end: Callable[[Client, ErrorCode, str], None]
    """Ends a client, with the words of an error."""
    refuse: Callable[[Client, ErrorCode, str, bytes], None]
    """Tells a client of an error for a packet, and ends it where the error does."""
    process_ended: Callable[[int, bytes], None]
    """Ends a connection whose pattern names a process that has ended."""


def bus_of(parts: Parts) -> BusState:
    """Return what must be known of the bus itself after a kill at any instant."""
    return BusState(parts.switch.next_connection(), started=parts.answers.started)


def standing(parts: Parts) -> State:
    """Return what must be known after a kill at any instant."""
    state = State(bus_of(parts))
    for client in parts.roster:
        state.connections[client.connection] = _connection(parts.switch, client)
    return state


def complete(parts: Parts) -> State:
    """Return all, down to each packet that waits, for a bus that ends in order. Call it between turns, when none is about to end."""
    state = standing(parts)
    bus, switch = state.bus, parts.switch
    bus.is_orderly = True
    bus.tally = switch.tally()
    bus.counts = dict(parts.counts)
    bus.records = parts.journal.counters._asdict()
    bus.forgotten_early = parts.accounts.forgotten_early
    state.accounts = parts.accounts.states()
    state.packets, state.queues = switch.queues()
    for number, connection in state.connections.items():
        connection.progress = switch.progress(number)
        connection.holding = parts.accounts.holding_state(number)
    return state


def _connection(switch: Switch, client: Client) -> ConnectionState:
    """Return what must be known of one connection."""
    number = client.connection
    patterns = switch.patterns(number)
    return replace(head_of(switch, client), patterns=patterns, tap=client.tap)


def head_of(switch: Switch, client: Client) -> ConnectionState:
    """Return what must be known of one connection, without its patterns and its tap."""
    who = client.credentials
    ids = (who.pid, who.uid, who.gid)
    return ConnectionState(client.connection, client.inode, client.since, switch.settings(client.connection), who=ids)
