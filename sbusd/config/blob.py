"""The settings of sbus-blob(8), with their defaults. Spec: blob.toml(5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from sbusd.config.hosts import AbsoluteFile
from sbusd.config.quantities import Count, Duration, Size, Spelling, show
from sbusd.config.rules import Subjects
from sbusd.protocol.blobs import MAX_HOST_CHARACTERS, is_host

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
    """Blobs and descriptors of other kinds."""
    bytes: Annotated[int, Size(0, 1 << 50, "no machine has more memory")] = 256 << 20
    """Sum of the sizes of the blobs."""
    connections: Annotated[int, Count(1, 1_000, "each of them is a descriptor of the service")] = 16
    """Connections to the service."""
    requests: Annotated[int, Count(1, 1_000, "each of them is a request to the bus")] = 4
    """Requests that wait for the bus at the same time."""
    closes: Annotated[int, Count(1, 100, "each of them is a descriptor of the service")] = 8
    """Descriptors that wait to be closed, and connections with unread ones. With more, the requests of the user wait."""
    wrong_tickets: Annotated[int, Count(1, 100_000, "a ticket has 128 random bits")] = 60
    """Unknown tickets per minute. After that, each request for a ticket is refused until the minute is over."""


@dataclass(frozen=True, slots=True)
class BlobRights:
    """``[rights]``: users and groups with rights that otherwise no user has."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    passing: Annotated[Subjects, Field(alias="pass")] = field(default_factory=Subjects)
    """``pass``: may pass descriptors of any kind to others that have the right, and take theirs."""


@dataclass(frozen=True, slots=True)
class BlobSettings:
    """``blob.toml``: the settings of one service."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    bus: Annotated[str, AbsoluteFile()] = ""
    """The socket of the bus; empty means that of the system, or with ``--user`` of the user."""
    host: Annotated[str, HostName()] = ""
    """The name of this host in messages that refer to blobs; empty means that of the system. For other hosts it is that of the link."""
    max_pulled: Annotated[int, Size(0, 1 << 50, "no machine has more memory")] = 256 << 20
    """Maximum size of the blobs of other hosts that are kept here, of all users."""
    max_expire: Annotated[float, Duration(1.0, 600.0, "a blob is a message, not a file")] = 600.0
    """Maximum number of seconds for which a blob is kept."""
    allow_sparse: Annotated[bool, Switch()] = False
    """Whether a blob may have pages that are not allocated: the first reader of such a page pays for it."""
    quotas: BlobQuotas = field(default_factory=BlobQuotas)
    """The quotas of each user."""
    rights: BlobRights = field(default_factory=BlobRights)
    """The rights."""
