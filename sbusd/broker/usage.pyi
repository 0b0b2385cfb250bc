from collections import Counter
from collections.abc import Callable
from typing import Self

from sbusd.broker.quota_refusal import QuotaRefusal
from sbusd.config.quotas import Quotas
from sbusd.protocol.credentials import Credentials

MAX_ABSENT_USERS: int
SEGMENT_BYTES: int
STATE_COPIES: int
PATTERN_BYTES: int

class TokenBucket:
    rate: float
    burst: float
    tokens: float
    since: float
    def __init__(self, rate: float, burst: float, tokens: float, since: float) -> None: ...
    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> Self: ...
    def take(self, now: float) -> bool: ...
    def refill(self, now: float) -> None: ...
    def resize(self, rate: float, burst: float, now: float) -> None: ...
    def full_at(self) -> float: ...

class ConnectionUsage:
    pid: int
    descriptors: int
    subscriptions: int
    pattern_bytes: int
    control_packets: int
    tolerance: TokenBucket | None
    def __init__(self, pid: int, descriptors: int = 1, control_packets: int = 0, tolerance: TokenBucket | None = None) -> None: ...

class UserUsage:
    credentials: Credentials
    limits: Quotas
    is_owner: bool
    control: TokenBucket
    attempts: TokenBucket
    records: TokenBucket
    connections: dict[int, ConnectionUsage]
    descriptors: int
    subscriptions: int
    pattern_bytes: int
    refused: Counter[str]
    unrecorded: int
    def __init__(
        self, credentials: Credentials, limits: Quotas, is_owner: bool, control: TokenBucket, attempts: TokenBucket, records: TokenBucket
    ) -> None: ...
    @property
    def uid(self) -> int: ...
    def is_settled(self, now: float) -> bool: ...
    def add_descriptors(self, connection: int, count: int) -> None: ...
    def add_patterns(self, connection: int, count: int, size: int) -> None: ...

class AbsentUsers:
    users: dict[int, UserUsage]
    forgotten_early: int
    def __len__(self) -> int: ...

class UsageTable:
    present: dict[int, UserUsage]
    absent: AbsentUsers
    by_connection: dict[int, UserUsage]
    descriptors: int
    capacity: int
    def __init__(self, capacity: int, separator: bytes, clock: Callable[[], float]) -> None: ...
    def now(self) -> float: ...
    def admit(self, connection: int, credentials: Credentials) -> QuotaRefusal | None: ...
    def leave(self, connection: int) -> None: ...
    def charge_control(self, connection: int) -> QuotaRefusal | None: ...
    def charge_subscription(self, connection: int, pattern: bytes) -> QuotaRefusal | None: ...
    def release_subscription(self, connection: int, pattern: bytes) -> None: ...
    def memory_of(self, pattern: bytes) -> int: ...
    def half_of_free(self, user: UserUsage) -> int: ...
