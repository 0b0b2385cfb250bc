"""The usage of users and connections as a restart preserves it. Spec: sbusd(8), RESTARTS."""

from __future__ import annotations

from sbusd.broker.quotas import UserQuotas
from sbusd.broker.usage import TokenBucket
from sbusd.protocol.credentials import Credentials
from sbusd.state.records import AccountState, BucketState, HoldingState

_NO_GROUP = (1 << 32) - 1
"""The kernel never gives this gid to a process."""


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


def readmit(quotas: UserQuotas, connection: int, credentials: Credentials, state: HoldingState) -> None:
    """Charge a restored connection to its user, whatever the quotas are now: it was admitted before the restart."""
    usage = quotas.force_admit(connection, credentials)
    usage.control_packets = state.control_packets
    if state.patience is not None:
        usage.tolerance = quotas.new_tolerance()
        _restore_bucket(usage.tolerance, state.patience)


def restore_users(quotas: UserQuotas, states: list[AccountState], forgotten_early: int) -> None:
    """Restore the usage of users, after all connections are readmitted."""
    now = quotas.now()
    quotas.absent.forgotten_early += forgotten_early
    for state in states:
        user = quotas.present.get(state.uid)
        if user is None:
            # The groups are unknown until the user connects again. Until then only its rates matter.
            user = quotas.absent.users[state.uid] = quotas.new_user(Credentials(0, state.uid, _NO_GROUP), now)
        for bucket, kept in ((user.control, state.control), (user.attempts, state.attempts), (user.records, state.tells)):
            _restore_bucket(bucket, kept)
        user.refused.update(state.refused)
        user.unrecorded = state.untold


def _bucket_state(bucket: TokenBucket) -> BucketState:
    """Return the content of a bucket."""
    return BucketState(bucket.tokens, bucket.since)


def _restore_bucket(bucket: TokenBucket, state: BucketState) -> None:
    """Restore the content of a bucket, within its present burst."""
    # If the clock is behind the state, this is another boot: then no tokens are gained until the clock reaches that time.
    bucket.since = min(bucket.since, state.since)
    bucket.tokens = min(bucket.burst, state.tokens)
