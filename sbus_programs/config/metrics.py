"""The settings of sbus-metrics(8), with their defaults. Spec: sbus-metrics(8), CONFIGURATION."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus_programs.config.hosts import AbsoluteFile
from sbus_programs.config.quantities import Count, Duration, Spelling, is_whole, show

MAX_PREFIXES = 16
"""Maximum number of prefixes: each has a connection to the bus."""

_SYSTEM_USER = "prometheus"
"""The user of Prometheus in the packages of distributions."""

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class ScrapeUser(Spelling):
    """A user by name or number. The name may be unknown: the package that creates the user can be installed later."""

    def parse(self, value: object) -> str:
        """Return the name, or the digits of the number. Raises ValueError if it is neither."""
        if is_whole(value) and 0 <= value < 1 << 32:
            return str(value)
        if isinstance(value, str) and value and value.isprintable() and ":" not in value:
            return value
        raise ValueError(f'must be the name or number of a user, such as "prometheus", not {show(value)}')


@dataclass(frozen=True, slots=True)
class CountedPrefix(Spelling):
    """A prefix of keys that ends with a separator."""

    def parse(self, value: object) -> str:
        """Return the prefix. Raises ValueError if it is not one of ordinary keys."""
        if not isinstance(value, str) or not value.endswith("/") or not value.isprintable() or "*" in value:
            raise ValueError(f'must be a prefix of keys that ends with "/", without a wildcard, such as "net/", not {show(value)}')
        if value.startswith("!/") or len(value.encode()) > MAX_KEY_BYTES:
            raise ValueError(f"no ordinary key starts with {show(value)}")
        return value


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """``metrics.toml``: the settings of one endpoint."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    bus: Annotated[str, AbsoluteFile()] = ""
    users: tuple[Annotated[str, ScrapeUser()], ...] = (_SYSTEM_USER,)
    max_users: Annotated[int, Count(0, 500, "the bus remembers 512 users, and each adds about 25 series to every scrape")] = 100
    prefixes: tuple[Annotated[str, CountedPrefix()], ...] = ()
    idle_timeout: Annotated[float, Duration(1.0, 86_400.0, "an endpoint without requests for a day is not used")] = 300.0
    """Seconds without a request after which the program ends. systemd starts it again. With ``prefixes`` it does not end."""

    def __post_init__(self) -> None:
        if len(self.prefixes) > MAX_PREFIXES:
            raise ValueError(f"prefixes has {len(self.prefixes)} items, at most {MAX_PREFIXES}: each needs a connection to the bus")
        if len(set(self.prefixes)) < len(self.prefixes):
            raise ValueError("prefixes names a prefix twice")
