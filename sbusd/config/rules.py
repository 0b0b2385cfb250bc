"""The rules of a bus as its configuration writes them: ``[[policy]]`` and ``[rights]``. Spec: sbusd.toml(5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from sbusd.config.groups import GroupId
from sbusd.config.quantities import Spelling, show
from sbusd.config.users import UserId

MAX_PUBLISH_RULES = 63
"""Rules with ``publish``: the switch keeps who matches which of them as bits of one word of 64."""

MAX_RULES = 1_000
"""Rules in all: each subscription is held to each of them, and while that is done no message is routed."""

MAX_PREFIX_BYTES = 64 << 10
"""Longest prefix: the longest that a key can be configured to be."""

MAX_COMMENT_CHARACTERS = 200
"""Longest comment: it stands in an error that must be one line."""

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class KeyPrefix(Spelling):
    """How the keys begin that a rule is about."""

    def parse(self, value: object) -> str:
        """Return the prefix. Raises ValueError if no key can begin so."""
        if not isinstance(value, str) or "\0" in value:
            raise ValueError(f'must be a prefix of keys, such as "lab/", or "" for all keys, not {show(value)}')
        if "*" in value:
            raise ValueError(f'must be a prefix of keys without a wildcard, such as "lab/", not {show(value)}')
        if len(value.encode("utf-8", "surrogatepass")) > MAX_PREFIX_BYTES:
            raise ValueError(f"prefix {show(value)} is longer than the longest key, {MAX_PREFIX_BYTES} bytes")
        return value


@dataclass(frozen=True, slots=True)
class Comment(Spelling):
    """One line for people."""

    def parse(self, value: object) -> str:
        """Return the comment. Raises ValueError if it is not one line that prints."""
        if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_COMMENT_CHARACTERS:
            raise ValueError(f"must be one line of at most {MAX_COMMENT_CHARACTERS} characters, not {show(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Origin(Spelling):
    """Where a table stands: the ``number``-th of its kind in ``file``. Put there by whoever reads files; nobody writes it."""

    file: str = ""
    number: int = 0

    def parse(self, value: object) -> Origin:
        """Return the origin. Raises ValueError for what a file says under its name."""
        if isinstance(value, Origin):
            return value
        raise ValueError("unknown key; the bus itself sets the origin of a rule")

    def __str__(self) -> str:
        return f"rule {self.number} of {self.file}"


@dataclass(frozen=True, slots=True)
class Subjects:
    """Some users and groups, by their ids."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    users: tuple[Annotated[int, UserId()], ...] = ()
    groups: tuple[Annotated[int, GroupId()], ...] = ()


@dataclass(frozen=True, slots=True)
class RightsSettings:
    """``[rights]``: who may do what else only an owner of the bus may."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    presence: Subjects = field(default_factory=Subjects)
    """Those who see all connections."""
    tap: Subjects = field(default_factory=Subjects)
    """Those who see all traffic."""
    block_others: Subjects = field(default_factory=Subjects)
    """Those whose full queues may hold up publishers of other users."""


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One ``[[policy]]``: who may or may not publish, subscribe, or both, where keys begin with ``keys``.

    Without ``users`` and ``groups`` it is about everyone.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    keys: Annotated[str, KeyPrefix()]
    publish: Literal["allow", "deny"] | None = None
    subscribe: Literal["allow", "deny"] | None = None
    users: tuple[Annotated[int, UserId()], ...] = ()
    groups: tuple[Annotated[int, GroupId()], ...] = ()
    comment: Annotated[str, Comment()] = ""
    """Told to whom the rule refuses, and in the record."""
    origin: Annotated[Origin, Origin()] = Origin()

    def __post_init__(self) -> None:
        if self.publish is None and self.subscribe is None:
            raise ValueError('the rule decides nothing; set publish or subscribe to "allow" or "deny"')

    @property
    def prefix(self) -> bytes:
        """How the keys begin, as the wire has them."""
        return self.keys.encode()

    @property
    def name(self) -> str:
        """The rule as it is told to people: where it stands, and its comment."""
        return f"{self.origin}: {self.comment}" if self.comment else str(self.origin)


def check_policy(rules: tuple[PolicyRule, ...]) -> None:
    """Raise ValueError if there are more *rules* than the bus can hold to."""
    if len(rules) > MAX_RULES:
        raise ValueError(f"too many policy rules: {len(rules)}, at most {MAX_RULES}")
    publishing = sum(rule.publish is not None for rule in rules)
    if publishing > MAX_PUBLISH_RULES:
        raise ValueError(f"too many policy rules with publish: {publishing}, at most {MAX_PUBLISH_RULES}; merge some by using groups")
