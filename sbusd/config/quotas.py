"""How much each user may make the bus hold and do: ``[quotas]`` and ``[[quotas.overrides]]``. Spec: sbusd.toml(5).

Quotas apply to users, not to connections, because a user can have any number of connections and processes. The user that makes the bus hold
something is charged for it. A user that reaches a quota harms only itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar

from sbusd.config.groups import GroupId
from sbusd.config.quantities import NO_BOUND, Bound, Count, Size
from sbusd.config.rules import Origin
from sbusd.config.users import UserId
from sbusd.protocol.credentials import Credentials

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
