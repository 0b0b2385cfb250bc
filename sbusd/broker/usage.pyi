from collections import Counter
from collections.abc import Callable
from typing import Self

from sbusd.broker.quotas import Excess
from sbusd.config.quotas import Quotas
from sbusd.protocol.credentials import Credentials

MAX_ABSENT: int
SEGMENT_BYTES: int
IMAGES: int
PATTERN_BYTES: int

class Bucket:
    rate: float
    burst: float
    tokens: float
    since: float
    def __init__(self, rate: float, burst: float, tokens: float, since: float) -> None: ...
    @classmethod
    def full(cls, rate: float, burst: float, now: float) -> Self: ...
    def take(self, now: float) -> bool: ...
    def settle(self, now: float) -> None: ...
    def resize(self, rate: float, burst: float, now: float) -> None: ...
    def full_at(self) -> float: ...

class Holding:
    pid: int
    descriptors: int
    subscriptions: int
    pattern_bytes: int
    control_packets: int
    patience: Bucket | None
    def __init__(self, pid: int, descriptors: int = 1, control_packets: int = 0, patience: Bucket | None = None) -> None: ...

class Account:
    credentials: Credentials
    quotas: Quotas
    is_owner: bool
    control: Bucket
    attempts: Bucket
    tells: Bucket
    holdings: dict[int, Holding]
    descriptors: int
    subscriptions: int
    pattern_bytes: int
    refused: Counter[str]
    untold: int
    def __init__(
        self, credentials: Credentials, quotas: Quotas, is_owner: bool, control: Bucket, attempts: Bucket, tells: Bucket
    ) -> None: ...
    @property
    def uid(self) -> int: ...
    def is_settled(self, now: float) -> bool: ...

class Holdings:
    present: dict[int, Account]
    departed: dict[int, Account]
    by_connection: dict[int, Account]
    descriptors: int
    capacity: int
    forgotten_early: int
    def __init__(self, capacity: int, separator: bytes, clock: Callable[[], float]) -> None: ...
    def now(self) -> float: ...
    def admit(self, connection: int, credentials: Credentials) -> Excess | None: ...
    def leave(self, connection: int) -> None: ...
    def charge_control(self, connection: int) -> Excess | None: ...
    def charge_subscription(self, connection: int, pattern: bytes) -> Excess | None: ...
    def release_subscription(self, connection: int, pattern: bytes) -> None: ...
    def hold_pattern(self, account: Account, connection: int, count: int, size: int) -> None: ...
    def memory_of(self, pattern: bytes) -> int: ...
    def half_of(self, account: Account) -> int: ...
    def file(self, account: Account, now: float) -> None: ...
