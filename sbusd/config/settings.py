"""The settings of the bus, with their defaults. Spec: sbusd.toml(5).

These are plain dataclasses. They are the only place of the defaults, and pydantic checks files against their annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, get_args

from sbusd.config.quantities import NO_BOUND, Bound, Count, Duration, Size, Spelling, show
from sbusd.config.quotas import QuotaSettings
from sbusd.config.rules import PolicyRule, RightsSettings, check_policy
from sbusd.config.users import UserId
from sbusd.protocol.credentials import is_credential_prefix
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.limits import MAX_KEY_BYTES

Level = Literal["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"]
"""A priority of log records, by its name in syslog(3); its position is the number."""

LEVELS: tuple[Level, ...] = get_args(Level)

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class CredentialPrefix(Spelling):
    """The name that a server in front of this one has for it: empty, or a response of ``whoami``."""

    def parse(self, value: object) -> str:
        """Return the prefix. Raises ValueError if it is invalid."""
        if not isinstance(value, str) or (value and not is_credential_prefix(value.encode("utf-8", "surrogatepass"))):
            raise ValueError(f'must be "!/cred/<gid>/<uid>/<pid>", or "" for none, not {show(value)}')
        return value


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """``[limits]``: limits of the switch, with the reasons for the defaults. They apply per connection, except for ``cache_bytes`` and
    ``queued_memory``."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    queue_packets: Annotated[int, Bound(1, 1 << 24, "each pending packet uses memory")] = NO_BOUND
    """Packets pending for one recipient before more are discarded; by default only their memory is limited."""
    queue_bytes: Annotated[int, Size(1 << 20, 1 << 34, "the largest packet of another user must fit")] = 64 << 20
    """Memory of the packets pending for one recipient; more are discarded. A publisher of another user may use half of it."""
    key_bytes: Annotated[int, Size(16, 64 << 10, "the cost of a match grows with the depth of the key")] = MAX_KEY_BYTES
    """Maximum size of a routing key or pattern."""
    batch_packets: Annotated[int, Count(1, 64, "the bus reads at most 64 packets together")] = 64
    """Packets read from one connection, or from all of one user while others wait, before it is the turn of the others."""
    cache_bytes: Annotated[int, Size(64 << 10, 1 << 32, "the cache must hold some keys")] = 4 << 20
    """Memory of the route cache, for all connections together."""
    low_water: Annotated[int, Count(0, 99, "the unit is percent of a queue")] = 50
    """Percentage of its limits to which a queue must drain before it releases the publishers that it blocks."""
    block_timeout: Annotated[float, Duration(0.01, 86_400, "a blocked publisher must be released in the end")] = 5.0
    """Maximum number of seconds for which a client may block publishers; then its mode acts as ``discard`` until its queue has drained."""
    progress_timeout: Annotated[float, Duration(0.01, 86_400, "a blocked publisher must be released in the end")] = 1.0
    """Maximum number of seconds for which a client may block publishers while its socket accepts nothing; then likewise."""
    pace_limit: Annotated[float, Duration(0.0, 1.0, "it is a part of each second")] = 0.1
    """Fraction of each second for which recipients of one user may delay a paced publisher of another; 1 means no limit."""
    turn_time: Annotated[float, Duration(1e-5, 10.0, "shorter is not measurable, longer delays other clients")] = 100 * 1e-6
    """Seconds of bus time per connection and turn. A connection that took more is served after others for four times as long."""
    queued_memory: Annotated[int, Size(16 << 20, 1 << 40, "the packets of a few users must fit together")] = 512 << 20
    """Memory of all pending packets. A user may hold at most as much as is free: ten users hold 32 MiB each beside one at its quota."""


@dataclass(frozen=True, slots=True)
class RateSettings:
    """``[log] rate_per_cause_per_user``: at most ``burst`` records of one message about one user in ``interval`` seconds."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    burst: Annotated[int, Count(1, 100_000, "some records must be written")] = 10
    """Records that are written per interval. The others are counted, and their number is recorded at its end."""
    interval: Annotated[float, Duration(0.1, 86_400, "the number of suppressed records must be logged in time")] = 10.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``[log]``: which records are written."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    level: Level = "info"
    """The lowest priority that is written."""
    rate_per_cause_per_user: RateSettings = field(default_factory=RateSettings)


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """``sbusd.toml``: the settings of one bus."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    separator: Literal["/", "."] = "/"
    """The separator of the segments of a key; ``.`` selects the earlier revision of the protocol, which reserves no keys."""
    credential_prefix: Annotated[str, CredentialPrefix()] = ""
    """The prefix of ``!/cred/…`` on this bus, if it is behind another server."""
    allowed_users: tuple[Annotated[int, UserId()], ...] = ()
    """Ids of the users that may connect, besides the user of the bus; empty means everyone. ``-u`` adds to them."""
    admins: tuple[Annotated[int, UserId()], ...] = ()
    """Ids of the users that are owners of the bus, besides root and the user of the bus."""
    protected_users: tuple[Annotated[int, UserId()], ...] = ()
    """Ids of the users whose disconnection by the bus is recorded with priority crit."""
    policy: tuple[PolicyRule, ...] = ()
    """The rules. The first that matches decides."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    log: LogSettings = field(default_factory=LogSettings)
    rights: RightsSettings = field(default_factory=RightsSettings)

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.credential_prefix and self.separator != "/":
            raise ValueError('credential_prefix requires separator = "/": a bus with another separator has no secret keys')

    @property
    def keyspace(self) -> KeySpace:
        """The key space of these settings."""
        return KeySpace(self.separator.encode(), self.credential_prefix.encode())
