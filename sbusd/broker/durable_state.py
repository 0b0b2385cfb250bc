"""The state of a bus, collected from its components: what must survive a crash, and what a planned restart hands over in addition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from sbusd.broker import usage_state
from sbusd.broker.access import AccessRules
from sbusd.broker.control_messages import ControlMessages
from sbusd.broker.log import BusLog
from sbusd.broker.presence_events import PresenceEvents
from sbusd.broker.process_watch import ProcessWatch
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.roster import Client, Roster
from sbusd.dataplane.contract import Switch
from sbusd.protocol.errors import ErrorCode
from sbusd.state.records import BusState, ConnectionState, State


@dataclass(frozen=True, slots=True)
class BrokerComponents:
    """The components of a broker, for the modules that save and restore its state."""

    switch: Switch
    roster: Roster
    quotas: UserQuotas
    access: AccessRules
    process_watch: ProcessWatch
    control_messages: ControlMessages
    presence: PresenceEvents
    journal: BusLog
    counts: Counter[str]
    admits: Callable[[int], bool]
    """Returns whether a user is admitted to the bus."""
    may_tap: Callable[[Client], bool]
    """Returns whether a client has the right to tap all traffic."""
    place: Callable[[Client], None]
    """Sets the user and the rules of a client in the switch."""
    end: Callable[[Client, ErrorCode, str], None]
    """Disconnects a client with an error."""
    refuse: Callable[[Client, ErrorCode, str, bytes], None]
    """Sends a client an error about a packet, and disconnects it if the error requires that."""
    process_ended: Callable[[int, bytes], None]
    """Closes a connection because the process that its pattern names has ended."""


def durable_state(components: BrokerComponents) -> State:
    """Return the state that must survive a crash at any time."""
    state = State(bus_state(components))
    for client in components.roster:
        connection = connection_state(components.switch, client)
        state.connections[client.connection] = replace(connection, patterns=components.switch.patterns(client.connection), tap=client.tap)
    return state


def full_state(components: BrokerComponents) -> State:
    """Return the whole state, down to each pending packet, for a planned restart. Call it between turns, when no client is about to end."""
    state = durable_state(components)
    bus, switch = state.bus, components.switch
    bus.is_orderly = True
    bus.tally = switch.tally()
    bus.counts = dict(components.counts)
    bus.records = components.journal.counters._asdict()
    bus.forgotten_early = components.quotas.absent.forgotten_early
    state.accounts = usage_state.user_usages(components.quotas)
    state.packets, state.queues = switch.queues()
    for number, connection in state.connections.items():
        connection.progress = switch.progress(number)
        connection.holding = usage_state.connection_usage(components.quotas, number)
    return state


def bus_state(components: BrokerComponents) -> BusState:
    """Return the state of the bus itself that must survive a crash."""
    return BusState(components.switch.next_connection(), started=components.control_messages.started)


def connection_state(switch: Switch, client: Client) -> ConnectionState:
    """Return the state of one connection that must survive a crash, without its patterns and its tap."""
    who = client.credentials
    ids = (who.pid, who.uid, who.gid)
    return ConnectionState(client.connection, client.inode, client.since, switch.settings(client.connection), who=ids)
