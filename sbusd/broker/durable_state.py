"""The state of a bus, collected from its broker: what must survive a crash, and what a planned restart hands over in addition.

Spec: sbusd(8), RESTARTS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from sbus.protocol.credentials import Credentials
from sbusd.broker.broker import Broker
from sbusd.broker.connection_times import date_of
from sbusd.broker.quota_usage import TokenBucket
from sbusd.broker.quotas import UserQuotas
from sbusd.broker.roster import Client
from sbusd.broker.totals import UserTotals
from sbusd.dataplane.contract import Switch
from sbusd.dataplane.counters import UserTraffic
from sbusd.state.records import AccountState, BucketState, BusState, ConnectionState, HoldingState, State, TotalsState

_NO_GROUP = (1 << 32) - 1
"""The kernel never gives this gid to a process."""


def durable_state(broker: Broker) -> State:
    """Return the state that must survive a crash at any time."""
    state = State(bus_state(broker))
    for client in broker.roster:
        connection = connection_state(broker.switch, client)
        patterns = broker.switch.patterns(client.connection)
        state.connections[client.connection] = replace(connection, patterns=patterns, tap=client.tap, name=client.name)
    return state


def full_state(broker: Broker) -> State:
    """Return the whole state, down to each pending packet, for a planned restart. Call it between turns, when no client is about to end."""
    state = durable_state(broker)
    broker.fast_path.count_answered()
    bus, switch = state.bus, broker.switch
    bus.is_orderly = True
    bus.tally = switch.tally()
    bus.counts = dict(broker.counts)
    bus.records = broker.journal.counters._asdict()
    bus.forgotten_early = broker.quotas.absent.forgotten_early
    bus.counted_since = broker.control_messages.counted_since
    bus.totals = user_totals(broker.quotas)
    state.accounts = user_usages(broker.quotas)
    state.packets, state.queues = switch.queues()
    for number, connection in state.connections.items():
        connection.progress = switch.progress(number)
        connection.holding = connection_usage(broker.quotas, number)
    return state


def bus_state(broker: Broker) -> BusState:
    """Return the state of the bus itself that must survive a crash."""
    return BusState(broker.switch.next_connection(), started=broker.control_messages.started)


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
