"""The settings of sbus-blob(8), with their defaults. Spec: blob.toml(5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from sbus.protocol.blobs import MAX_HOST_CHARACTERS, is_host
from sbus_programs.config.hosts import AbsoluteFile
from sbus_programs.config.quantities import Count, Duration, Size, Spelling, show
from sbus_programs.config.rules import Subjects

SYSTEM_BUS = "/run/sbus.socket"

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Switch(Spelling):
    """``true`` or ``false``."""

    def parse(self, value: object) -> bool:
        """Return the value. Raises ValueError if it is another."""
        if value is True or value is False:
            return value
        raise ValueError(f"must be true or false, not {show(value)}")


@dataclass(frozen=True, slots=True)
class HostName(Spelling):
    """The name of a host; empty means that it is not set."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if it is invalid."""
        if isinstance(value, str) and (not value or is_host(value)):
            return value
        raise ValueError(f'must be 1 to {MAX_HOST_CHARACTERS} letters, digits, "_", "-" and ".", not {show(value)}')


@dataclass(frozen=True, slots=True)
class BlobQuotas:
    """``[quotas]``: what each user may hold."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    blobs: Annotated[int, Count(0, 10_000, "each of them is a descriptor of the service")] = 64
    bytes: Annotated[int, Size(0, 1 << 50, "no machine has more memory")] = 256 << 20
    connections: Annotated[int, Count(1, 1_000, "each of them is a descriptor of the service")] = 16
    requests: Annotated[int, Count(1, 1_000, "each of them is a request to the bus")] = 4
    closes: Annotated[int, Count(1, 100, "each of them is a descriptor of the service")] = 8
    wrong_tickets: Annotated[int, Count(1, 100_000, "a ticket has 128 random bits")] = 60


@dataclass(frozen=True, slots=True)
class BlobRights:
    """``[rights]``: users and groups with rights that otherwise no user has."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    passing: Annotated[Subjects, Field(alias="pass")] = field(default_factory=Subjects)


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """``blob.toml``: the settings of one service."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    bus: Annotated[str, AbsoluteFile()] = ""
    host: Annotated[str, HostName()] = ""
    max_pulled: Annotated[int, Size(0, 1 << 50, "no machine has more memory")] = 256 << 20
    max_expire: Annotated[float, Duration(1.0, 600.0, "a blob is a message, not a file")] = 600.0
    allow_sparse: Annotated[bool, Switch()] = False
    quotas: BlobQuotas = field(default_factory=BlobQuotas)
    rights: BlobRights = field(default_factory=BlobRights)
