"""The quotas of users: their limits, and the refusal of requests beyond them. Spec: sbusd.toml(5), [quotas]; sbus-protocol(7) §8.

Whether a request is within them is decided in `sbusd.broker.quota_usage`; the numbers are in `sbus_programs.config.settings`.

Rules:

1. Each resource is charged to the user that requested it, and that of a container to the user who has its ids, subuid(5). Only requests of
   a user that has reached a quota are refused.
2. Only owners may use more than half of the descriptors that other users leave free, so there is always one for the next user. All others
   together have less than half of all, because a restart needs each one twice.
3. A user without a connection is remembered until its buckets are full, so that reconnecting does not refill them. The number of
   these users is bounded; the others are forgotten.
4. A refusal does not cost more than the request: the largest holders are determined only for refusals that are logged.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Mapping

from sbus.protocol.credentials import Credentials
from sbus_programs.config.settings import QuotaSettings
from sbusd.broker.quota_refusal import Quota, QuotaRefusal
from sbusd.broker.quota_usage import ConnectionUsage, TokenBucket, UsageTable, UserUsage

RESERVED_DESCRIPTORS = 32
"""Descriptors reserved for the bus itself: its listening socket, its epolls, the journal's socket, a configuration file."""

SHARED_PARTS, PARTS = 7, 16
"""The part of all descriptors that users other than owners have together: a restart needs a second descriptor of each connection for a
moment, and an eighth of that half is for owners."""

LEAST_DESCRIPTORS = RESERVED_DESCRIPTORS - (-2 * PARTS // SHARED_PARTS)
"""With fewer, no user but an owner could have a connection: see rule 2."""

NO_GROUP = -2
"""A gid that no rule and no quota names."""

TOLERATED_PACKETS = 1_000
"""Control packets of one connection beyond the rate of its user that are refused at once before it is disconnected."""

TOLERATED_RATE = 100
"""Refused packets per second that are forgiven."""

_RECORDS_AT_ONCE, _RECORDS_PER_SECOND = 5, 1

TOP_HOLDERS = 3
"""Number of processes that the log record of a refusal names."""


class StateUsage:
    """The memory that each user's changes take in the state log until it is rewritten, in bytes: see ``state_bytes`` in sbusd.toml(5).

    Counted are the current log, the draft of the next one, and the obsolete one. The patterns in an image are not counted here:
    ``pattern_bytes`` limits them.
    """

    def __init__(self) -> None:
        self._log: Counter[int] = Counter()
        self._draft: Counter[int] = Counter()
        self._obsolete: Counter[int] = Counter()

    def of(self, uid: int) -> int:
        """Return the size of all changes of a user."""
        # Not with []: for a missing key, a Counter calls a Python function.
        return self._log.get(uid, 0) + self._draft.get(uid, 0) + self._obsolete.get(uid, 0)

    def in_log(self, uid: int) -> int:
        """Return the size of those in the current log: a rewrite would remove them."""
        return self._log[uid]

    def add_to_log(self, uid: int, size: int) -> None:
        """Count a change in the current log."""
        self._log[uid] += size

    def add_to_draft(self, uid: int, size: int) -> None:
        """Count a change in the draft."""
        self._draft[uid] += size

    def commit(self) -> None:
        """Make the draft the current log, and the current log obsolete."""
        self._obsolete += self._log
        self._log, self._draft = self._draft, Counter()

    def drop_draft(self) -> None:
        """Make the draft obsolete."""
        self._obsolete += self._draft
        self._draft = Counter()

    def drop_log(self) -> None:
        """Make the current log obsolete."""
        self._obsolete += self._log
        self._log = Counter()

    def free(self) -> None:
        """Forget the obsolete log: it is freed."""
        self._obsolete = Counter()


class UserQuotas(UsageTable):
    """The users of one bus, and their quotas. *descriptors* is the descriptor limit of the process; *clock* counts seconds, for tests."""

    def __init__(
        self,
        settings: QuotaSettings,
        owners: frozenset[int],
        descriptors: int,
        *,
        separator: bytes = b"/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        capacity = max(0, descriptors - RESERVED_DESCRIPTORS)
        super().__init__(capacity, capacity * SHARED_PARTS // PARTS, separator, clock)
        self._settings = settings
        self._owners = owners
        self.state_usage = StateUsage()
        """Size of the changes of each user in the kept state."""

    def configure(self, settings: QuotaSettings, owners: frozenset[int]) -> list[UserUsage]:
        """Apply new quotas, and return the users that have a connection. They keep what they use beyond a new quota."""
        self._settings, self._owners = settings, owners
        self.forget_unchanged()
        now = self.now()
        for user in (*self.present.values(), *self.absent.users.values()):
            self.update_limits(user, user.credentials, now)
        return list(self.present.values())

    def __getitem__(self, connection: int) -> UserUsage:
        """Return the user of a connection. Raises KeyError if there is no such connection."""
        return self.by_connection[connection]

    def is_owner(self, uid: int) -> bool:
        """Return whether a user owns the bus."""
        return uid in self._owners

    def latest_credentials(self, uid: int) -> Credentials | None:
        """Return the credentials of the latest connection of a user, from the kernel; None if the bus remembers none."""
        if (totals := self.totals.by_uid.get(uid)) is not None and totals.credentials is not None:
            return totals.credentials
        user = self.present.get(uid)  # there are more users than the table of totals has
        return None if user is None or user.credentials.gid == NO_GROUP else user.credentials

    def __len__(self) -> int:
        """Return the number of users that have a connection."""
        return len(self.present)

    def page(self, uid: int | None, after: int, size: int) -> tuple[list[UserUsage], int | None]:
        """Return at most *size* present users with ids above *after*, and the id after which the next page starts, or None.

        Only the user *uid* is returned, unless it is None.
        """
        candidates = self.present if uid is None else self.present.keys() & {uid}
        found = heapq.nsmallest(size + 1, (each for each in candidates if each > after))
        return [self.present[each] for each in found[:size]], found[size - 1] if len(found) > size else None

    # -- limits of one user

    def new_user(self, credentials: Credentials, now: float) -> UserUsage:
        """Return a user that has used nothing yet."""
        is_owner = credentials.uid in self._owners
        limits = self._settings.of(credentials, is_owner=is_owner)
        control = TokenBucket.full(limits.control_rate, limits.control_burst, now)
        attempts = TokenBucket.full(limits.connection_rate, limits.connection_burst, now)
        return UserUsage(credentials, limits, is_owner, control, attempts, TokenBucket.full(_RECORDS_PER_SECOND, _RECORDS_AT_ONCE, now))

    def update_limits(self, user: UserUsage, credentials: Credentials, now: float) -> None:
        """Determine the limits of a user again, by new *credentials* or settings."""
        user.credentials = credentials
        user.is_owner = credentials.uid in self._owners
        limits = self._settings.of(credentials, is_owner=user.is_owner)
        if limits != user.limits:
            user.limits = limits
            user.control.resize(limits.control_rate, limits.control_burst, now)
            user.attempts.resize(limits.connection_rate, limits.connection_burst, now)

    def state_bytes(self, uid: int) -> int:
        """Return the maximum size of a user's changes in the kept state, in bytes."""
        user = self.present.get(uid) or self.absent.users.get(uid)
        return self._settings.state_bytes if user is None else user.limits.state_bytes

    def _descriptor_limit_of(self, user: UserUsage) -> tuple[int, str]:
        """Return the maximum number of descriptors of a user, and the reason if it is not the quota. See ``UsageTable.has_descriptor``."""
        quota = user.limits.connections
        half = self.half_of_free(user)
        if user.is_owner or quota <= half:
            return quota, ""
        return max(0, half), ", half of the descriptors that other users leave free, of those that a restart can keep"

    # -- descriptors and changes

    def charged_uid(self, uid: int) -> int:
        """Return the uid of the user whose quotas a user takes: of a subordinate id, see subuid(5), that of the user who has it.

        If that is an owner or unknown, the first id of the range is charged for all: a container does not have the quotas of an owner.
        """
        return uid if self.subordinates is None else self.subordinates.charged(uid, self._owners)

    def charged_credentials(self, credentials: Credentials) -> Credentials:
        """Return the credentials of the user that is charged for a client. Without a connection of that user, its groups are unknown."""
        uid = self.charged_uid(credentials.uid)
        if uid == credentials.uid:
            return credentials
        known = self.present.get(uid) or self.absent.users.get(uid)
        return Credentials(credentials.pid, uid, NO_GROUP) if known is None else known.credentials

    def force_admit(self, connection: int, credentials: Credentials) -> ConnectionUsage:
        """Charge a connection without a check, and return its usage."""
        charged = self.charged_credentials(credentials)
        user = self.present.get(charged.uid)
        if user is None:
            user = self.present[charged.uid] = self.new_user(charged, self.now())
            user.totals = self.totals.of(charged.uid, self.present)
        self.totals.of(credentials.uid, self.present).credentials = credentials
        self.by_connection[connection] = user
        usage = user.add_connection(connection, credentials.pid)
        self.force_descriptor(connection)
        return usage

    def force_subscription(self, connection: int, pattern: bytes, count: int) -> None:
        """Charge *count* instances of a pattern without a check."""
        self.by_connection[connection].add_patterns(connection, count, count * self.memory_of(pattern))

    def force_descriptor(self, connection: int) -> None:
        """Charge one more descriptor of a connection without a check."""
        self.by_connection[connection].add_descriptors(connection, 1)
        self.descriptors += 1

    def charge_descriptor(self, connection: int) -> QuotaRefusal | None:
        """Charge one more descriptor, for the process of a connection, and return None, or return the refusal."""
        user = self.by_connection[connection]
        limit, why = self._descriptor_limit_of(user)
        if user.descriptors >= limit:
            hint = f"{why}; watching a process needs one"
            return refuse(user, Quota.CONNECTIONS, user.descriptors, limit, self.now(), hint=hint)
        self.force_descriptor(connection)
        return None

    def release_descriptor(self, connection: int) -> None:
        """Release the descriptor of a connection's process."""
        self.by_connection[connection].add_descriptors(connection, -1)
        self.descriptors -= 1

    def charge_change(self, connection: int) -> QuotaRefusal | None:
        """Return the refusal of a change to the kept state, or None if the user may make one: see ``state_bytes``."""
        user = self.by_connection[connection]
        used, limit = self.state_usage.of(user.credentials.uid), user.limits.state_bytes
        if used < limit:
            return None
        return refuse(user, Quota.STATE_BYTES, used, limit, self.now(), hint="; retry when the state file has been rewritten")

    # -- refusals of UsageTable

    def refuse_attempt(self, user: UserUsage, now: float) -> QuotaRefusal:
        """Return the refusal of a connection that comes too soon after others."""
        burst, hint = user.limits.connection_burst, f"; {user.limits.connection_rate} more each second"
        return refuse(user, Quota.CONNECTION_RATE, burst, burst, now, unit=" attempts", hint=hint, disconnects=True)

    def refuse_connection(self, user: UserUsage, now: float) -> QuotaRefusal:
        """Return the refusal of one more connection."""
        limit, why = self._descriptor_limit_of(user)
        return refuse(user, Quota.CONNECTIONS, user.descriptors, limit, now, hint=why, disconnects=True)

    def refuse_control(self, user: UserUsage, usage: ConnectionUsage, now: float) -> QuotaRefusal:
        """Return the refusal of one more control packet of a connection."""
        if usage.tolerance is None:
            usage.tolerance = self.new_tolerance()
        disconnects = not usage.tolerance.take(now)
        burst, hint = user.limits.control_burst, f"; {user.limits.control_rate} more each second"
        return refuse(user, Quota.CONTROL_RATE, burst, burst, now, unit=" packets", hint=hint, disconnects=disconnects)

    def refuse_subscription(self, user: UserUsage, used: int, limit: int) -> QuotaRefusal:
        """Return the refusal of one more pattern."""
        return refuse(user, Quota.SUBSCRIPTIONS, used, limit, self.now())

    def refuse_pattern(self, user: UserUsage, used: int, limit: int) -> QuotaRefusal:
        """Return the refusal of a pattern that needs too much memory."""
        return refuse(user, Quota.PATTERN_BYTES, used, limit, self.now())

    def new_tolerance(self) -> TokenBucket:
        """Return the full bucket of refused control packets of one connection."""
        return TokenBucket.full(TOLERATED_RATE, TOLERATED_PACKETS, self.now())


def refuse(
    user: UserUsage, quota: Quota, used: int, limit: int, now: float, *, unit: str = "", hint: str = "", disconnects: bool = False
) -> QuotaRefusal:
    """Count a refusal and return it: the user has *used* so much of *limit*. *unit* and *hint* are inserted into the text as they are."""
    user.refused[quota.value] += 1
    user.totals.add_refusals(quota.value, 1)
    user.unrecorded += 1
    reason = f"{quota.value}: {used} of {limit}{unit} used by user {user.uid}{hint}"
    if not user.records.take(now):
        return QuotaRefusal(quota, reason, disconnects)
    unrecorded, user.unrecorded = user.unrecorded, 0
    return QuotaRefusal(quota, reason, disconnects, unrecorded, top_holders(user, quota))


_AMOUNTS: Mapping[Quota, Callable[[ConnectionUsage], int]] = {
    Quota.SUBSCRIPTIONS: lambda usage: usage.subscriptions,
    Quota.PATTERN_BYTES: lambda usage: usage.pattern_bytes,
    Quota.CONTROL_RATE: lambda usage: usage.control_packets,
    Quota.STATE_BYTES: lambda usage: usage.control_packets,
}


def top_holders(user: UserUsage, quota: Quota) -> str:
    """Return which of a user's processes use most of a quota: of connections summed by process, otherwise by connection."""
    if quota in (Quota.CONNECTIONS, Quota.CONNECTION_RATE):
        by_pid: Counter[int] = Counter()
        for usage in user.connections.values():
            by_pid[usage.pid] += usage.descriptors
        most = by_pid.most_common(TOP_HOLDERS)
    else:
        amount = _AMOUNTS[quota]
        most = [(usage.pid, amount(usage)) for usage in heapq.nlargest(TOP_HOLDERS, user.connections.values(), key=amount)]
    return ", ".join(f"pid {pid}: {count}" for pid, count in most) or "none"
