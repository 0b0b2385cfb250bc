"""Why a request is refused: the quota that its user has reached. Spec: sbusd.toml(5), [quotas]."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
