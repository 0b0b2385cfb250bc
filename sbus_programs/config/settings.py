"""The settings of the bus, with their defaults, and its quotas. Spec: sbusd.toml(5).

These are plain dataclasses. They are the only place of the defaults, and pydantic checks files against their annotations.

Quotas apply to users, not to connections, because a user can have any number of connections and processes. The user that makes the bus hold
something is charged for it. A user that reaches a quota harms only itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, ClassVar, Literal, get_args

from sbus.protocol.credentials import Credentials, is_credential_prefix
from sbus.protocol.keys import MAX_KEY_BYTES, KeySpace
from sbus_programs.config.quantities import NO_BOUND, Bound, Count, Duration, Size, Spelling, show
from sbus_programs.config.rules import Origin, PolicyRule, RightsSettings, check_policy
from sbus_programs.config.users import GroupId, UserId

_FORBID_UNKNOWN = {"extra": "forbid"}

_NOWHERE = Origin()

_CONNECTIONS = Count(1, 1 << 20, "the bus needs a descriptor for each")
_SUBSCRIPTIONS = Count(1, 1 << 24, "each one uses memory")
_PATTERN_BYTES = Size(64 << 10, 1 << 34, "some patterns must fit")
_STATE_BYTES = Size(1 << 20, 1 << 34, "some thousand changes must fit")
_QUEUED_PACKETS = Bound(1, 1 << 30, "each pending packet uses memory")
_QUEUED_BYTES = Size(1 << 20, 1 << 40, "the largest packet of another user must fit")
_RATE = Count(1, 10_000_000, "a rate of 0 would block the user")
_BURST = Count(10, 100_000_000, "a client sends its first packets together")
_FACTOR = Count(1, 1_000, "an owner has no less than other users")

Level = Literal["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"]
"""A priority of log records, by its name in syslog(3); its position is the number."""

LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of one user, with the reasons for the defaults. Rates are per second."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    connections: Annotated[int, _CONNECTIONS] = 256
    """Concurrent connections: more than a session has programs, and 64 users fit into the 16,384 descriptors of the units."""
    subscriptions: Annotated[int, _SUBSCRIPTIONS] = 16_384
    """Stored patterns, each instance counted: 64 for each of 256 connections. Some megabytes of memory."""
    pattern_bytes: Annotated[int, _PATTERN_BYTES] = 20 << 20
    """Memory of these patterns, by bytes and segments: 16,384 patterns with three segments and 95 bytes each."""
    state_bytes: Annotated[int, _STATE_BYTES] = 16 << 20
    """Changes in the state log until it is rewritten: all patterns of a user added and removed, twice."""
    queued_packets: Annotated[int, _QUEUED_PACKETS] = NO_BOUND
    """Packets pending for the user's connections; by default only their memory is limited."""
    queued_bytes: Annotated[int, _QUEUED_BYTES] = 128 << 20
    """Memory of these packets: two full queues, and half of that for the publishers of one other user."""
    control_rate: Annotated[int, _RATE] = 10_000
    """Packets other than MSG, also SUB and UNSUB. Each takes some microseconds without routing: together a tenth of each second."""
    control_burst: Annotated[int, _BURST] = 32_768
    """Such packets in a burst: twice the maximum number of patterns, so that all programs of a user can start together."""
    connection_rate: Annotated[int, _RATE] = 200
    """Connection attempts, accepted or not: a shell loop of sbusctl makes ten or twenty; each costs ten times a control packet."""
    connection_burst: Annotated[int, _BURST] = 1_024
    """Such attempts in a burst: four times the maximum number of connections."""

    def times(self, factor: int) -> Quotas:
        """Return quotas *factor* times as large."""
        return Quotas(**{each.name: min(getattr(self, each.name) * factor, NO_BOUND) for each in fields(Quotas)})


@dataclass(frozen=True, slots=True)
class QuotaOverride:
    """One ``[[quotas.overrides]]``: other quotas for some ``users`` and members of ``groups``, or for everyone if both are empty."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    users: tuple[Annotated[int, UserId()], ...] = ()
    groups: tuple[Annotated[int, GroupId()], ...] = ()
    connections: Annotated[int | None, _CONNECTIONS] = None
    subscriptions: Annotated[int | None, _SUBSCRIPTIONS] = None
    pattern_bytes: Annotated[int | None, _PATTERN_BYTES] = None
    state_bytes: Annotated[int | None, _STATE_BYTES] = None
    queued_packets: Annotated[int | None, _QUEUED_PACKETS] = None
    queued_bytes: Annotated[int | None, _QUEUED_BYTES] = None
    control_rate: Annotated[int | None, _RATE] = None
    control_burst: Annotated[int | None, _BURST] = None
    connection_rate: Annotated[int | None, _RATE] = None
    connection_burst: Annotated[int | None, _BURST] = None
    origin: Annotated[Origin, _NOWHERE] = _NOWHERE

    def __post_init__(self) -> None:
        if all(getattr(self, each.name) is None for each in fields(Quotas)):
            raise ValueError("the override changes nothing; write a quota and its value, such as connections = 16")

    def applies_to(self, credentials: Credentials) -> bool:
        """Return whether it applies to a client with *credentials*: by user, group or supplementary group."""
        if not self.users and not self.groups:
            return True
        return credentials.uid in self.users or credentials.gid in self.groups or not credentials.groups.isdisjoint(self.groups)


@dataclass(frozen=True, slots=True)
class QuotaSettings(Quotas):
    """``[quotas]``: the quotas of every user, and the overrides."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    owner_factor: Annotated[int, _FACTOR] = 16
    """The factor of each default for an owner: most services of a machine share the uid of root, and could do worse to the bus anyway."""
    overrides: tuple[QuotaOverride, ...] = ()

    def of(self, credentials: Credentials, *, is_owner: bool) -> Quotas:
        """Return the quotas of a client with *credentials*: each from the first override that applies and sets it, else the default."""
        default = Quotas(**{each.name: getattr(self, each.name) for each in fields(Quotas)})
        if is_owner:
            default = default.times(self.owner_factor)
        found: dict[str, int] = {}
        for override in self.overrides:
            if override.applies_to(credentials):
                for each in fields(Quotas):
                    if (value := getattr(override, each.name)) is not None:
                        found.setdefault(each.name, value)
        return replace(default, **found)


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
    interval: Annotated[float, Duration(0.1, 86_400, "the number of suppressed records must be logged in time")] = 10.0


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``[log]``: which records are written."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    level: Level = "info"
    rate_per_cause_per_user: RateSettings = field(default_factory=RateSettings)


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """``sbusd.toml``: the settings of one bus."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    separator: Literal["/", "."] = "/"
    credential_prefix: Annotated[str, CredentialPrefix()] = ""
    allowed_users: tuple[Annotated[int, UserId()], ...] = ()
    admins: tuple[Annotated[int, UserId()], ...] = ()
    protected_users: tuple[Annotated[int, UserId()], ...] = ()
    policy: tuple[PolicyRule, ...] = ()
    limits: LimitSettings = field(default_factory=LimitSettings)
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    log: LogSettings = field(default_factory=LogSettings)
    rights: RightsSettings = field(default_factory=RightsSettings)

    def __post_init__(self) -> None:
        check_policy(self.policy)
        if self.credential_prefix and self.separator != "/":
            raise ValueError('credential_prefix requires separator = "/": a bus with another separator has no private keys')

    @property
    def keyspace(self) -> KeySpace:
        """The key space of these settings."""
        return KeySpace(self.separator.encode(), self.credential_prefix.encode())
