"""What each user makes the bus hold and do, and how much of that it may. Spec: sbusd.toml(5), [quotas]; sbus-protocol(7) §8.

Rules:

1. The user that makes the bus hold something is charged for it. Whoever is at a quota is refused, and nobody else.
2. Nobody but an owner gets more than half of the descriptors that others leave, so there is always one for the next user.
3. Users without a connection are kept while their buckets are not full, lest to reconnect were to fill them; of these users there
   is a bounded number, and the rest are forgotten.
4. A refusal costs as little as what it refuses: who holds most is found only as often as it is recorded.
"""

from __future__ import annotations

import enum
import heapq
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sbusd.broker.usage import Account, Bucket, Holding, Holdings
from sbusd.config.quotas import QuotaSettings
from sbusd.protocol.credentials import Credentials
from sbusd.state.records import AccountState, BucketState, HoldingState
from sbusd.state.usage import StateUsage

RESERVED_DESCRIPTORS = 32
"""Left to the bus itself: its listening socket, its epolls, the journal's socket, a file of its configuration."""

PATIENCE_PACKETS = 1_000
"""Control packets of one connection that are refused for the rate of its user at once, before it is disconnected."""

PATIENCE_RATE = 100
"""Of which so many are forgiven in a second."""

TOP_HOLDERS = 3

_TELLS_AT_ONCE, _TELLS_PER_SECOND = 5, 1

_NO_GROUP = (1 << 32) - 1
"""The kernel never gives it to a process."""


class Quota(enum.Enum):
    """A quota, by its key in sbusd.toml(5). Those of what is queued are the switch's to keep."""

    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    PATTERN_BYTES = "pattern_bytes"
    STATE_BYTES = "state_bytes"
    CONTROL_RATE = "control_rate"
    CONNECTION_RATE = "connection_rate"


@dataclass(frozen=True, slots=True)
class Excess:
    """A refusal. ``words`` are for the client; ``ends`` says that its connection ends for it.

    ``untold`` is how many refusals of this user the record is to tell of, and ``holders`` who holds most; 0: make no record.
    """

    quota: Quota
    words: str
    ends: bool = False
    untold: int = 0
    holders: str = ""


class Accounts(Holdings):
    """The users of one bus whose keys have this *separator*. *descriptors* is how many it may open; *clock* counts seconds, for tests."""

    def __init__(
        self,
        settings: QuotaSettings,
        owners: frozenset[int],
        descriptors: int,
        *,
        separator: bytes = b"/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(max(0, descriptors - RESERVED_DESCRIPTORS), separator, clock)
        self._settings = settings
        self._owners = owners
        self.state_usage = StateUsage()
        """What users' changes take in the kept state."""

    def configure(self, settings: QuotaSettings, owners: frozenset[int]) -> list[Account]:
        """Have other quotas from now on, and return the accounts of those who are there. What they hold beyond stays theirs."""
        self._settings, self._owners = settings, owners
        now = self.now()
        for account in (*self.present.values(), *self.departed.values()):
            self.assess(account, account.credentials, now)
        return list(self.present.values())

    def __getitem__(self, connection: int) -> Account:
        """Return the account of a connection. Raises KeyError if there is none."""
        return self.by_connection[connection]

    def readmit(self, connection: int, credentials: Credentials, held: HoldingState) -> None:
        """Charge a connection that outlived a restart to its user; it was admitted before, and is not refused for what changed since."""
        now = self.now()
        account = self.present.get(credentials.uid)
        if account is None:
            account = self.present[credentials.uid] = self.open_account(credentials, now)
        patience = None if held.patience is None else Bucket.full(PATIENCE_RATE, PATIENCE_PACKETS, now)
        if patience is not None and held.patience is not None:
            _restore_bucket(patience, held.patience)
        account.holdings[connection] = Holding(credentials.pid, 0, control_packets=held.control_packets, patience=patience)
        self.by_connection[connection] = account
        self._hold_descriptor(account, connection, 1)

    def rehold(self, connection: int, pattern: bytes, count: int) -> None:
        """Charge *count* instances of a pattern that a connection held before a restart."""
        self.hold_pattern(self.by_connection[connection], connection, count, count * self.memory_of(pattern))

    def rehold_descriptor(self, connection: int) -> None:
        """Charge the descriptor of the process of a connection that had it before a restart."""
        self._hold_descriptor(self.by_connection[connection], connection, 1)

    def holding_state(self, connection: int) -> HoldingState:
        """Return what a connection has done, for after a restart."""
        held = self.by_connection[connection].holdings[connection]
        return HoldingState(held.control_packets, None if held.patience is None else _bucket_state(held.patience))

    def states(self) -> list[AccountState]:
        """Return what users have used, for after a restart: first those who are there, then the absent in the order they left."""
        return [
            AccountState(
                each.uid,
                _bucket_state(each.control),
                _bucket_state(each.attempts),
                _bucket_state(each.tells),
                dict(each.refused),
                each.untold,
            )
            for each in (*self.present.values(), *self.departed.values())
        ]

    def restore(self, states: list[AccountState], forgotten_early: int) -> None:
        """Let users go on where they were, after all connections are readmitted."""
        now = self.now()
        self.forgotten_early += forgotten_early
        for each in states:
            account = self.present.get(each.uid)
            if account is None:
                # Who they are in detail the kernel says when they come again; until then only their rates matter.
                account = self.departed[each.uid] = self.open_account(Credentials(0, each.uid, _NO_GROUP), now)
            for bucket, state in ((account.control, each.control), (account.attempts, each.attempts), (account.tells, each.tells)):
                _restore_bucket(bucket, state)
            account.refused.update(each.refused)
            account.untold = each.untold

    def charge_change(self, connection: int) -> Excess | None:
        """Return why nothing that is kept for after a restart may be changed for a connection, if so: see ``state_bytes``."""
        account = self.by_connection[connection]
        used, limit = self.state_usage.of(account.credentials.uid), account.quotas.state_bytes
        if used < limit:
            return None
        words = f"{used} of {limit} used by user {account.uid}; retry when the state file has been rewritten"
        return self._refuse(account, Quota.STATE_BYTES, words, self.now())

    def state_bytes(self, uid: int) -> int:
        """Return how many bytes a user's changes may take in the kept state."""
        account = self.present.get(uid) or self.departed.get(uid)
        return self._settings.state_bytes if account is None else account.quotas.state_bytes

    def charge_descriptor(self, connection: int) -> Excess | None:
        """Charge one more descriptor, for the process of a connection, or say why it is not to be opened."""
        account = self.by_connection[connection]
        limit, why = self._descriptors_of(account)
        if account.descriptors >= limit:
            words = f"{account.descriptors} of {limit} used by user {account.uid}{why}; watching a process needs one"
            return self._refuse(account, Quota.CONNECTIONS, words, self.now())
        self._hold_descriptor(account, connection, 1)
        return None

    def release_descriptor(self, connection: int) -> None:
        """Give back the descriptor of a connection's process."""
        self._hold_descriptor(self.by_connection[connection], connection, -1)

    def page(self, uid: int | None, after: int, size: int) -> tuple[list[Account], int | None]:
        """Return at most *size* of the users who are there with ids above *after*, and the id to start after for more, or None.

        *uid* is the only one who is looked for, None all.
        """
        found = heapq.nsmallest(size + 1, (each for each in self.present if each > after and uid in (None, each)))
        return [self.present[each] for each in found[:size]], found[size - 1] if len(found) > size else None

    def __len__(self) -> int:
        """Return how many users are there."""
        return len(self.present)

    def absent(self) -> int:
        """Return how many users without a connection are kept."""
        return len(self.departed)

    # -- one user

    def open_account(self, credentials: Credentials, now: float) -> Account:
        """Return the account of a user who is not known."""
        is_owner = credentials.uid in self._owners
        quotas = self._settings.of(credentials, is_owner=is_owner)
        control = Bucket.full(quotas.control_rate, quotas.control_burst, now)
        attempts = Bucket.full(quotas.connection_rate, quotas.connection_burst, now)
        return Account(credentials, quotas, is_owner, control, attempts, Bucket.full(_TELLS_PER_SECOND, _TELLS_AT_ONCE, now))

    def assess(self, account: Account, credentials: Credentials, now: float) -> None:
        """Find a user's quotas anew."""
        account.credentials = credentials
        account.is_owner = credentials.uid in self._owners
        quotas = self._settings.of(credentials, is_owner=account.is_owner)
        if quotas != account.quotas:
            account.quotas = quotas
            account.control.resize(quotas.control_rate, quotas.control_burst, now)
            account.attempts.resize(quotas.connection_rate, quotas.connection_burst, now)

    def _descriptors_of(self, account: Account) -> tuple[int, str]:
        """Return how many descriptors a user may take, and why, if not for its quota."""
        quota = account.quotas.connections
        half = self.half_of(account)
        if account.is_owner or quota <= half:
            return quota, ""
        return max(0, half), ", half of the descriptors that other users leave free"

    def refuse_attempt(self, account: Account, now: float) -> Excess:
        """Return why a connection is not to be had so soon after others."""
        quotas = account.quotas
        words = f"{quotas.connection_burst} of {quotas.connection_burst} attempts used by user {account.uid}"
        more = f"; {quotas.connection_rate} more each second"
        return self._refuse(account, Quota.CONNECTION_RATE, words + more, now, ends=True)

    def refuse_descriptor(self, account: Account, now: float) -> Excess:
        """Return why one more connection is not to be had."""
        limit, why = self._descriptors_of(account)
        words = f"{account.descriptors} of {limit} used by user {account.uid}{why}"
        return self._refuse(account, Quota.CONNECTIONS, words, now, ends=True)

    def refuse_control(self, account: Account, held: Holding, now: float) -> Excess:
        """Return why one more control packet of a connection is not to be handled."""
        if held.patience is None:
            held.patience = Bucket.full(PATIENCE_RATE, PATIENCE_PACKETS, now)
        quotas = account.quotas
        words = (
            f"{quotas.control_burst} of {quotas.control_burst} packets used by user {account.uid}; {quotas.control_rate} more each second"
        )
        return self._refuse(account, Quota.CONTROL_RATE, words, now, ends=not held.patience.take(now))

    def refuse_subscription(self, account: Account, used: int, limit: int) -> Excess:
        """Return why a user may not store one more pattern."""
        return self._refuse(account, Quota.SUBSCRIPTIONS, f"{used} of {limit} used by user {account.uid}", self.now())

    def refuse_pattern(self, account: Account, used: int, limit: int) -> Excess:
        """Return why a user's patterns may not take more memory."""
        return self._refuse(account, Quota.PATTERN_BYTES, f"{used} of {limit} used by user {account.uid}", self.now())

    def _refuse(self, account: Account, quota: Quota, words: str, now: float, *, ends: bool = False) -> Excess:
        """Count a refusal, and return it, with what the record needs if one is due."""
        account.refused[quota.value] += 1
        account.untold += 1
        words = f"{quota.value}: {words}"
        if not account.tells.take(now):
            return Excess(quota, words, ends)
        untold, account.untold = account.untold, 0
        return Excess(quota, words, ends, untold, top_holders(account, quota))

    def _hold_descriptor(self, account: Account, connection: int, count: int) -> None:
        """Add to the descriptors that a connection, its user and all hold."""
        account.holdings[connection].descriptors += count
        account.descriptors += count
        self.descriptors += count


def _bucket_state(bucket: Bucket) -> BucketState:
    """Return what a bucket holds, for after a restart."""
    return BucketState(bucket.tokens, bucket.since)


def _restore_bucket(bucket: Bucket, state: BucketState) -> None:
    """Let a bucket hold what it held, as far as it goes now."""
    # A clock that is behind what was written is another machine's or another boot's: then nothing comes until it is there.
    bucket.since = min(bucket.since, state.since)
    bucket.tokens = min(bucket.burst, state.tokens)


_AMOUNTS: Mapping[Quota, Callable[[Holding], int]] = {
    Quota.SUBSCRIPTIONS: lambda held: held.subscriptions,
    Quota.PATTERN_BYTES: lambda held: held.pattern_bytes,
    Quota.CONTROL_RATE: lambda held: held.control_packets,
    Quota.STATE_BYTES: lambda held: held.control_packets,
}


def top_holders(account: Account, quota: Quota) -> str:
    """Return who of a user's processes or connections has most of what *quota* bounds: of connections a process, else a connection."""
    if quota in (Quota.CONNECTIONS, Quota.CONNECTION_RATE):
        by_pid: Counter[int] = Counter()
        for held in account.holdings.values():
            by_pid[held.pid] += held.descriptors
        most = by_pid.most_common(TOP_HOLDERS)
    else:
        amount = _AMOUNTS[quota]
        most = [(held.pid, amount(held)) for held in heapq.nlargest(TOP_HOLDERS, account.holdings.values(), key=amount)]
    return ", ".join(f"pid {pid}: {count}" for pid, count in most) or "none"


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
