"""The refusal of a request because a user has reached a quota: its text for the client, and its facts for the log.

Spec: sbusd.toml(5), [quotas]; sbus-protocol(7) §8. A refusal must not cost more than the request, so the largest holders are determined
only for refusals that are logged.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sbusd.broker.usage import ConnectionUsage, UserUsage

TOP_HOLDERS = 3


class Quota(enum.Enum):
    """A quota, by its key in sbusd.toml(5). The switch enforces the quotas of queued packets and bytes."""

    CONNECTIONS = "connections"
    SUBSCRIPTIONS = "subscriptions"
    PATTERN_BYTES = "pattern_bytes"
    STATE_BYTES = "state_bytes"
    CONTROL_RATE = "control_rate"
    CONNECTION_RATE = "connection_rate"


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """A refused request. ``reason`` is the text for the client; ``disconnects`` says whether its connection is closed.

    ``unrecorded`` is the number of refusals of this user that the log record counts, 0: write no record; ``holders`` are the largest ones.
    """

    quota: Quota
    reason: str
    disconnects: bool = False
    unrecorded: int = 0
    holders: str = ""


def refuse(
    user: UserUsage, quota: Quota, used: int, limit: int, now: float, *, unit: str = "", hint: str = "", disconnects: bool = False
) -> QuotaRefusal:
    """Count a refusal and return it: the user has *used* so much of *limit*. *unit* and *hint* are inserted into the text as they are."""
    user.refused[quota.value] += 1
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
