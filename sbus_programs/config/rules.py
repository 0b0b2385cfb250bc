"""The rules of a bus: ``[[policy]]`` and ``[rights]``. Spec: sbusd.toml(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from sbus_programs.config.quantities import Spelling, show
from sbus_programs.config.users import GroupId, UserId

MAX_PUBLISH_RULES = 63
"""Maximum number of rules with ``publish``: the switch stores the matching ones of a user as bits of a 64-bit word."""

MAX_RULES = 1_000
"""Maximum number of rules: each subscription is checked against each of them, and no message is routed meanwhile."""

MAX_PREFIX_BYTES = 64 << 10
"""Maximum size of a prefix: the greatest configurable size of a key."""

MAX_COMMENT_CHARACTERS = 200
"""Maximum length of a comment: it is part of an error text of one line."""

_UNIT = re.compile(r"[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\@-]+)?\.(?:service|scope|socket|mount|swap)")

_UNIT_CHARACTERS = 255
"""Maximum length of the name of a unit, systemd.unit(5)."""

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class KeyPrefix(Spelling):
    """The prefix of the keys of a rule."""

    def parse(self, value: object) -> str:
        """Return the prefix. Raises ValueError if no key can start with it."""
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f'must be a prefix of keys, such as "lab/", or "" for all keys, not {show(value)}')
        if "*" in value:
            raise ValueError(f'must be a prefix of keys without a wildcard, such as "lab/", not {show(value)}')
        if len(value.encode("utf-8", "surrogatepass")) > MAX_PREFIX_BYTES:
            raise ValueError(f"prefix {show(value)} is longer than the longest key, {MAX_PREFIX_BYTES} bytes")
        return value


@dataclass(frozen=True, slots=True)
class UnitName(Spelling):
    """The name of a unit, or all instances of a template: ``app@*.service``."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if no process can be in such a unit."""
        if not isinstance(value, str) or not is_unit(value.replace("@*.", "@x.")):
            raise ValueError(f'must be a unit, such as "nginx.service", or the instances of a template, "app@*.service", not {show(value)}')
        return value


@dataclass(frozen=True, slots=True)
class Comment(Spelling):
    """One line of text for people."""

    def parse(self, value: object) -> str:
        """Return the comment. Raises ValueError if it is not one printable line."""
        if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_COMMENT_CHARACTERS:
            raise ValueError(f"must be one line of at most {MAX_COMMENT_CHARACTERS} characters, not {show(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Origin(Spelling):
    """The place of a table: the ``number``-th of its kind in ``file``. The reader of the files sets it; no file can."""

    file: str = ""
    number: int = 0

    def parse(self, value: object) -> Origin:
        """Return the origin. Raises ValueError for a value from a file."""
        if isinstance(value, Origin):
            return value
        raise ValueError("unknown key; the bus itself sets the origin of a rule")

    def __str__(self) -> str:
        return f"rule {self.number} of {self.file}"


@dataclass(frozen=True, slots=True)
class Subjects:
    """Users and groups, by id."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    users: tuple[Annotated[int, UserId()], ...] = ()
    groups: tuple[Annotated[int, GroupId()], ...] = ()


@dataclass(frozen=True, slots=True)
class RightsSettings:
    """``[rights]``: users and groups with rights that otherwise only an owner of the bus has, or no user."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    presence: Subjects = field(default_factory=Subjects)
    tap: Subjects = field(default_factory=Subjects)
    block_others: Subjects = field(default_factory=Subjects)
    vouch: Subjects = field(default_factory=Subjects)
    deliver: Subjects = field(default_factory=Subjects)
    stats: Subjects = field(default_factory=Subjects)


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One ``[[policy]]``: allows or denies publishing, subscribing or both to keys that start with ``keys``.

    Without ``users`` and ``groups`` it applies to everyone. With ``units`` it applies only to those of them in one of these units.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    keys: Annotated[str, KeyPrefix()]
    publish: Literal["allow", "deny"] | None = None
    subscribe: Literal["allow", "deny"] | None = None
    users: tuple[Annotated[int, UserId()], ...] = ()
    groups: tuple[Annotated[int, GroupId()], ...] = ()
    units: tuple[Annotated[str, UnitName()], ...] = ()
    comment: Annotated[str, Comment()] = ""
    origin: Annotated[Origin, Origin()] = Origin()

    def __post_init__(self) -> None:
        if self.publish is None and self.subscribe is None:
            raise ValueError('the rule decides nothing; set publish or subscribe to "allow" or "deny"')

    @property
    def prefix(self) -> bytes:
        """The prefix as bytes."""
        return self.keys.encode()

    def names_unit(self, unit: str) -> bool:
        """Return whether *unit* is one of the units, or an instance of one of the templates."""
        template, at, _ = unit.partition("@")
        return unit in self.units or (bool(at) and f"{template}@*.{unit.rpartition('.')[2]}" in self.units)

    @property
    def name(self) -> str:
        """The rule for people: its origin and its comment."""
        return f"{self.origin}: {self.comment}" if self.comment else str(self.origin)


def is_unit(name: str) -> bool:
    """Return whether *name* can be that of a unit in which processes run, systemd.unit(5)."""
    return len(name) <= _UNIT_CHARACTERS and _UNIT.fullmatch(name) is not None


def check_policy(rules: tuple[PolicyRule, ...]) -> None:
    """Raise ValueError if there are too many *rules*."""
    if len(rules) > MAX_RULES:
        raise ValueError(f"too many policy rules: {len(rules)}, at most {MAX_RULES}")
    publishing = sum(rule.publish is not None for rule in rules)
    if publishing > MAX_PUBLISH_RULES:
        raise ValueError(f"too many policy rules with publish: {publishing}, at most {MAX_PUBLISH_RULES}; merge some by using groups")
