"""The settings of sbus-trigger(8), with their defaults. Spec: trigger.toml(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sbus.protocol.envelope import SERVICE_HEAD, command_problem, start_command
from sbus.protocol.keys import MAX_KEY_BYTES, is_matchable
from sbus_programs.config.hosts import AbsoluteFile
from sbus_programs.config.quantities import Count, Duration, Spelling, is_whole, show
from sbus_programs.config.rules import Origin
from sbus_programs.config.users import UserId

MAX_RULES = 64
"""Maximum number of rules: each has a connection to the bus."""

MAX_PATTERNS = 100
"""Maximum number of patterns of a rule."""

MAX_UNIT_BYTES = 255
"""Longest name of a unit, systemd.unit(5)."""

MAX_MATCH_CHARACTERS = 256
"""Longest text of a condition on the payload."""

MAX_MATCHES = 16
"""Maximum number of members of the payload that a rule has conditions on."""

SERVICE_TIMEOUT = 10.0
"""Default of the seconds that a service has to subscribe to its command."""

EVERY_USER = -1
"""The value of ``"*"`` in ``from``: every user of this host."""

ACTIONS = ("start", "restart", "reload", "stop")
"""What a rule does with its unit; each is a key of ``[[on]]``."""

_SUFFIX = re.compile(r"\.(?:service|target|timer|path|socket|mount|automount|swap|slice|scope)")
_NAME = re.compile(r"[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\@-]*)?")

_CALLS = SERVICE_HEAD.decode()

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class UnitName(Spelling):
    """The name of a unit, or of a template such as ``page@.service``."""

    def parse(self, value: object) -> str:
        """Return the name. Raises ValueError if systemd accepts no unit of this name."""
        if isinstance(value, str) and len(value) <= MAX_UNIT_BYTES and not value.startswith((".", "-")):
            stem, dot, suffix = value.rpartition(".")
            if _SUFFIX.fullmatch(dot + suffix) and _NAME.fullmatch(stem) and not stem.startswith("@"):
                return value
        raise ValueError(
            f'must be the full name of a unit, such as "backup.service", or of a template, such as "page@.service", not {show(value)}'
        )


@dataclass(frozen=True, slots=True)
class RulePatterns(Spelling):
    """One pattern of keys, or a list of them."""

    def parse(self, value: object) -> tuple[str, ...]:
        """Return the patterns. Raises ValueError if one matches no ordinary key."""
        patterns = [value] if isinstance(value, str) else value
        if not isinstance(patterns, list | tuple) or not 0 < len(patterns) <= MAX_PATTERNS:
            raise ValueError(f'must be a pattern, such as "backup/", or a list of at most {MAX_PATTERNS} patterns, not {show(value)}')
        return tuple(dict.fromkeys(_pattern(each) for each in patterns))


@dataclass(frozen=True, slots=True)
class SenderUser(Spelling):
    """A user in ``from``: a name, a number, or ``"*"`` for every user."""

    def parse(self, value: object) -> int:
        """Return the id of the user, or :data:`EVERY_USER`. Raises ValueError if it is unknown."""
        return EVERY_USER if value == "*" else UserId().parse(value)


@dataclass(frozen=True, slots=True)
class PayloadMatch(Spelling):
    """A text with ``*`` that the payload must match, or a table of such texts for members of a JSON object."""

    def parse(self, value: object) -> tuple[tuple[str, str], ...]:
        """Return the conditions: each a member of the payload, empty for the payload itself, and a text. Raises ValueError."""
        if isinstance(value, str):
            return (("", _glob(value)),)
        if not isinstance(value, dict) or not 0 < len(value) <= MAX_MATCHES or "" in value:
            most = f'a table of at most {MAX_MATCHES} members, such as {{ MESSAGE = "*disk full*" }}'
            raise ValueError(f'must be a text, such as "*disk full*", or {most}, not {show(value)}')
        return tuple((name, _glob(each)) for name, each in value.items())


@dataclass(frozen=True, slots=True)
class InstancePart(Spelling):
    """The part of the message that becomes the instance of a template."""

    def parse(self, value: object) -> str | int:
        """Return ``key``, ``message``, or the number of a segment, from 1. Raises ValueError."""
        if value in ("key", "message") or (is_whole(value) and 1 <= value <= MAX_KEY_BYTES):
            return value
        raise ValueError(f'must be "key", "message", or the number of a segment of the key from 1, not {show(value)}')


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``count`` in ``interval`` seconds."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    count: Annotated[int, Count(1, 10_000, "systemd starts some hundred units per second")]
    interval: Annotated[float, Duration(0.1, 7 * 86_400.0, "the trigger keeps the times in memory")]


@dataclass(frozen=True, slots=True)
class TriggerRule:
    """One ``[[on]]``: messages, and the unit that they start."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    keys: Annotated[tuple[str, ...], RulePatterns()]
    senders: Annotated[tuple[Annotated[int, SenderUser()], ...], Field(alias="from")]
    name: str = ""
    start: Annotated[str, UnitName()] = ""
    restart: Annotated[str, UnitName()] = ""
    reload: Annotated[str, UnitName()] = ""
    stop: Annotated[str, UnitName()] = ""
    instance: Annotated[str | int, InstancePart()] = "key"
    when: Literal["message", "no-service"] = "message"
    service_timeout: Annotated[float, Duration(0.1, 600.0, "the call waits for the service")] = SERVICE_TIMEOUT
    match: Annotated[tuple[tuple[str, str], ...], PayloadMatch()] = ()
    vouched_by: tuple[Annotated[int, UserId()], ...] = ()
    burst: Rate = field(default_factory=lambda: Rate(5, 10.0))
    loop: Rate = field(default_factory=lambda: Rate(60, 600.0))
    on_gap: Literal["ignore", "fire"] = "ignore"
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if not self.senders:
            raise ValueError('from is empty; name the users whose messages count, or write from = ["*"] for every user of this host')
        given = [action for action in ACTIONS if getattr(self, action)]
        if len(given) != 1:
            found = f"found {' and '.join(given)}" if given else "none is set"
            raise ValueError(f'exactly one of {", ".join(ACTIONS)} must name a unit, such as start = "backup.service"; {found}')
        if not self.name.isprintable() or len(self.name.encode()) > MAX_UNIT_BYTES:
            raise ValueError(f"name must be at most {MAX_UNIT_BYTES} printable bytes, not {show(self.name)}")
        if self.on_gap == "fire" and self.is_template:
            raise ValueError(f'on_gap = "fire" needs a unit without "@": a lost message has no key for the instance of {self.unit}')
        if self.instance != "key" and not self.is_template:
            raise ValueError(f'instance needs a template, such as "page@.service"; {self.unit} is none')

        if self.when == "no-service":
            self._check_no_service()
        elif self.service_timeout != SERVICE_TIMEOUT:
            raise ValueError('service_timeout needs when = "no-service"')

    def _check_no_service(self) -> None:
        """Raise ValueError if the rule does not fit calls, of which the trigger knows only the command."""
        for key in self.keys:
            command = key.removeprefix(_CALLS)
            if command in ("", key) or command_problem(start_command(command)):
                raise ValueError(f'when = "no-service" needs keys of calls without "*", such as "rpc/backup", not {show(key)}')
        wrong = next((name for name in ("restart", "reload", "stop", "match", "vouched_by") if getattr(self, name)), None)
        wrong = wrong or ("on_gap" if self.on_gap == "fire" else None) or ("instance" if self.instance == "message" else None)
        if wrong is not None:
            text = {"on_gap": ' = "fire"', "instance": ' = "message"'}.get(wrong, "")
            raise ValueError(f'when = "no-service" starts a unit for a call, and cannot be used with {wrong}{text}')

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands of a rule with ``when = "no-service"``."""
        return tuple(key.removeprefix(_CALLS) for key in self.keys)

    @property
    def action(self) -> str:
        """The action, one of :data:`ACTIONS`."""
        return next(action for action in ACTIONS if getattr(self, action))

    @property
    def unit(self) -> str:
        """The unit or template."""
        unit: str = getattr(self, self.action)
        return unit

    @property
    def is_template(self) -> bool:
        """Whether the unit is a template, which each message gives an instance."""
        return "@." in self.unit

    @property
    def title(self) -> str:
        """The name for people."""
        return self.name or f"{self.action} {self.unit}"


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """``trigger.toml``: the settings of one trigger."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    bus: Annotated[str, AbsoluteFile()] = ""
    folder: Annotated[str, AbsoluteFile()] = ""
    state_interval: Annotated[int, Count(1, 3_600, "the state is a message on the bus")] = 10
    rules: Annotated[tuple[TriggerRule, ...], Field(alias="on")] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if len(self.rules) > MAX_RULES:
            raise ValueError(f"too many tables [[on]]: {len(self.rules)}, at most {MAX_RULES}")
        seen: set[str] = set()
        started: dict[str, str] = {}
        for rule in self.rules:
            for command in rule.commands if rule.when == "no-service" else ():
                if started.setdefault(command, rule.title) != rule.title:
                    key = show(_CALLS + command)
                    raise ValueError(f'two tables [[on]] with when = "no-service" have the key {key}; remove one of them')
            if rule.title in seen:
                raise ValueError(f"two tables [[on]] have the name {show(rule.title)}; give one of them another with name = ...")
            seen.add(rule.title)


def _pattern(value: object) -> str:
    """Return a pattern of ordinary keys. Raises ValueError."""
    if not isinstance(value, str) or "\0" in value or len(value.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise ValueError(f'must be a pattern of keys of at most {MAX_KEY_BYTES} bytes, such as "backup/", not {show(value)}')
    if value.startswith("!/"):
        raise ValueError(f'private and reserved keys, which begin with "!/", start no units: {show(value)}')
    if value.startswith("trigger/"):
        raise ValueError(f'the keys of the trigger itself, which begin with "trigger/", start no units: {show(value)}')
    if not is_matchable(value.encode()):
        raise ValueError(f'no key matches the pattern {show(value)}: remove what follows "*" in its segment')
    return value


def _glob(value: object) -> str:
    """Return a text with ``*``. Raises ValueError."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_MATCH_CHARACTERS:
        raise ValueError(
            f'must be a text of 1 to {MAX_MATCH_CHARACTERS} characters in which * matches any text, such as "*full*", not {show(value)}'
        )
    return value
