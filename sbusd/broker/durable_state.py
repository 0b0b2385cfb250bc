"""The state of a bus, collected from its components: what must survive a crash, and what a planned restart hands over in addition.

Spec: sbusd(8), RESTARTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from sbusd.broker.connection_times import date_of
from sbusd.broker.quota_usage import TokenBucket
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.roster import Client
from sbusd.broker.totals import UserTotals
from sbusd.dataplane.contract import Switch
from sbusd.dataplane.counters import UserTraffic
from sbusd.protocol.credentials import Credentials
from sbusd.state.records import AccountState, BucketState, BusState, ConnectionState, HoldingState, State, TotalsState

if TYPE_CHECKING:
    from sbusd.broker.broker import BrokerComponents


_NO_GROUP = (1 << 32) - 1
"""The kernel never gives this gid to a process."""


class ChangeLog:
    """The log of control-plane changes, from which the next process restores the bus after a crash.

    This one is for a bus without a service manager that stores its state: it writes nothing. Messages are not logged and cost nothing here.
    Each change is one record, written before the client learns of the change.
    """

    def numbered(self, connection: int) -> None:
        """Log that a connection number is in use, before it becomes known."""

    def opened(self, client: Client) -> None:
        """Log a new client."""

    def closed(self, client: Client) -> None:
        """Log the end of a client."""

    def subscribed(self, client: Client, pattern: bytes) -> None:
        """Log one more instance of a pattern."""

    def unsubscribed(self, client: Client, pattern: bytes) -> None:
        """Log one instance of a pattern less."""

    def changed(self, client: Client) -> None:
        """Log the changed settings of a client: echo, modes."""

    def tapped(self, client: Client, pattern: bytes | None) -> None:
        """Log the tap of a client, or its end for None."""

    def named(self, client: Client) -> None:
        """Log the name of a client."""

    @property
    def has_work(self) -> bool:
        """Whether :meth:`step` has work."""
        return False

    def step(self) -> None:
        """Do a small part of the work that happens between turns."""

    def counts(self) -> dict[str, int]:
        """Return the statistics of the log: failures, and how often it was rewritten."""
        return {"connection_store_failures": 0, "connections_missing": 0, "state_failures": 0, "state_rewrites": 0}


def durable_state(components: BrokerComponents) -> State:
    """Return the state that must survive a crash at any time."""
    state = State(bus_state(components))
    for client in components.roster:
        connection = connection_state(components.switch, client)
        patterns = components.switch.patterns(client.connection)
        state.connections[client.connection] = replace(connection, patterns=patterns, tap=client.tap, name=client.name)
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
    bus.counted_since = components.control_messages.counted_since
    bus.totals = user_totals(components.quotas)
    state.accounts = user_usages(components.quotas)
    state.packets, state.queues = switch.queues()
    for number, connection in state.connections.items():
        connection.progress = switch.progress(number)
        connection.holding = connection_usage(components.quotas, number)
    return state


def bus_state(components: BrokerComponents) -> BusState:
    """Return the state of the bus itself that must survive a crash."""
    return BusState(components.switch.next_connection(), started=components.control_messages.started)


def connection_state(switch: Switch, client: Client) -> ConnectionState:
    """Return the state of one connection that must survive a crash, without its patterns, its tap and its name."""
    who = client.credentials
    ids = (who.pid, who.uid, who.gid)
    return ConnectionState(client.connection, client.inode, date_of(client.since), switch.settings(client.connection), who=ids)


def connection_usage(quotas: UserQuotas, connection: int) -> HoldingState:
    """Return the usage of a connection."""
    usage = quotas[connection].connections[connection]
    return HoldingState(usage.control_packets, None if usage.tolerance is None else _bucket_state(usage.tolerance))


def user_usages(quotas: UserQuotas) -> list[AccountState]:
    """Return the usage of all users: first those with a connection, then the absent ones in the order in which they left."""
    return [
        AccountState(
            user.uid,
            _bucket_state(user.control),
            _bucket_state(user.attempts),
            _bucket_state(user.records),
            dict(user.refused),
            user.unrecorded,
        )
        for user in (*quotas.present.values(), *quotas.absent.users.values())
    ]


def user_totals(quotas: UserQuotas) -> list[TotalsState]:
    """Return the totals of all users, and those of forgotten ones."""
    kept: list[tuple[int | None, UserTotals]] = [(None, quotas.totals.other), *quotas.totals.by_uid.items()]
    return [TotalsState(uid, totals.traffic._asdict(), dict(totals.refused)) for uid, totals in kept]


def restore_totals(quotas: UserQuotas, states: list[TotalsState]) -> None:
    """Restore the totals of users, before their connections are readmitted."""
    for state in states:
        quotas.totals.restore(state.uid, _traffic_in(state.traffic), state.refused)


def count_gone(quotas: UserQuotas, connection: ConnectionState) -> None:
    """Add to the totals of its user what a connection had done before a restart that it did not survive."""
    if (ids := connection.who) is not None:
        _, uid, _ = ids
        quotas.totals.restore(uid, _traffic_in(asdict(connection.progress)), {})


def readmit(quotas: UserQuotas, connection: int, credentials: Credentials, state: HoldingState) -> None:
    """Charge a restored connection to its user, whatever the quotas are now: it was admitted before the restart."""
    usage = quotas.force_admit(connection, credentials)
    usage.control_packets = state.control_packets
    if state.tolerance is not None:
        usage.tolerance = quotas.new_tolerance()
        _restore_bucket(usage.tolerance, state.tolerance)


def restore_users(quotas: UserQuotas, states: list[AccountState], forgotten_early: int) -> None:
    """Restore the usage of users, after all connections are readmitted."""
    now = quotas.now()
    quotas.absent.forgotten_early += forgotten_early
    for state in states:
        user = quotas.present.get(state.uid)
        if user is None:
            # The groups are unknown until the user connects again. Until then only its rates matter.
            user = quotas.absent.users[state.uid] = quotas.new_user(Credentials(0, state.uid, _NO_GROUP), now)
        for bucket, kept in ((user.control, state.control), (user.attempts, state.attempts), (user.records, state.records)):
            _restore_bucket(bucket, kept)
        user.refused.update(state.refused)
        user.unrecorded = state.unrecorded


def _traffic_in(counts: Mapping[str, int]) -> UserTraffic:
    """Return the traffic of which *counts* has numbers, by name."""
    return UserTraffic(**{name: counts.get(name, 0) for name in UserTraffic._fields})


def _bucket_state(bucket: TokenBucket) -> BucketState:
    """Return the content of a bucket."""
    return BucketState(bucket.tokens, bucket.since)


def _restore_bucket(bucket: TokenBucket, state: BucketState) -> None:
    """Restore the content of a bucket, within its present burst."""
    # If the clock is behind the state, this is another boot: then no tokens are gained until the clock reaches that time.
    bucket.since = min(bucket.since, state.since)
    bucket.tokens = min(bucket.burst, state.tokens)
