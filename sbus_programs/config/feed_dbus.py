"""The settings of the feed of D-Bus signals, with their defaults. Spec: feed-dbus.toml(5)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from sbus_programs.config.quantities import Count, Spelling, show
from sbus_programs.config.rules import Origin

MAX_SIGNALS = 64
"""Maximum number of tables: each is a match rule, of which a user may have 512 on the system bus of D-Bus."""

MAX_NAME_BYTES = 255
"""Longest name of a bus name, an interface or a member. Source: the D-Bus specification."""

MAX_TEXT_BYTES = 1024
"""Longest template of a key, path, or first argument."""

MAX_FIELDS = 8
"""Maximum number of fields in the template of a key, so that no key is longer than a bus allows by default."""

PREFIX = "dbus/"
"""The prefix of all keys."""

OWN_NAMES = ("request", "state", "lost")
"""Second segments of the keys of the feed itself."""

KEY_FIELD = re.compile(r"\{(sender|path|object|interface|member|arg[0-9])\}")
"""A field of the template of a key."""

_ELEMENT = r"[A-Za-z_-][A-Za-z0-9_-]*"
_WELL_KNOWN = re.compile(rf"{_ELEMENT}(?:\.{_ELEMENT})+")
_INTERFACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"/|(?:/[A-Za-z0-9_]+)+")

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class DBusText(Spelling):
    """A text that matches *pattern*; *what* says what it is, with an example."""

    pattern: re.Pattern[str]
    what: str
    most: int = MAX_NAME_BYTES

    def parse(self, value: object) -> str:
        """Return the text. Raises ValueError."""
        if isinstance(value, str) and len(value) <= self.most and self.pattern.fullmatch(value):
            return value
        raise ValueError(f"must be {self.what}, not {show(value)}")


@dataclass(frozen=True, slots=True)
class FirstArgument(Spelling):
    """The first argument of the signals."""

    def parse(self, value: object) -> str:
        """Return the text. Raises ValueError."""
        # dbus-fast 1.84 cannot send other characters.
        if isinstance(value, str) and value.isascii() and value.isprintable() and len(value) <= MAX_TEXT_BYTES:
            return value
        raise ValueError(f"must be a text of at most {MAX_TEXT_BYTES} printable ASCII characters, not {show(value)}")


@dataclass(frozen=True, slots=True)
class KeyTemplate(Spelling):
    """The template of the key of a signal."""

    def parse(self, value: object) -> str:
        """Return the template. Raises ValueError if it makes an invalid key, or one of another service."""
        if not isinstance(value, str) or not value.isprintable() or len(value.encode()) > MAX_TEXT_BYTES:
            raise ValueError(f'must be a key, such as "dbus/upower/{{member}}", not {show(value)}')
        if not value.startswith(PREFIX):
            raise ValueError(f'must begin with "{PREFIX}", not {show(value)}: other keys belong to other services')
        plain = KEY_FIELD.sub("x", value)
        if "{" in plain or "}" in plain:
            known = "{sender}, {path}, {object}, {interface}, {member} and {arg0} to {arg9}"
            raise ValueError(f"has an unknown field: {show(value)}; the fields are {known}")
        if len(KEY_FIELD.findall(value)) > MAX_FIELDS:
            raise ValueError(f"has more than {MAX_FIELDS} fields: {show(value)}")
        if "*" in plain or "" in plain.split("/"):
            raise ValueError(f'must not contain "*" or an empty segment: {show(value)}')
        own = value.split("/")[1]
        if "{" in own or own in OWN_NAMES:
            raise ValueError(f'must have a name of its own after "{PREFIX}", such as "dbus/upower/{{member}}", not {show(value)}')
        return value


@dataclass(frozen=True, slots=True)
class SignalRule:
    """One ``[[signal]]``: which signals, and their key."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    key: Annotated[str, KeyTemplate()]
    sender: Annotated[str, DBusText(_WELL_KNOWN, 'the well-known name of a service, such as "org.freedesktop.UPower"')]
    interface: Annotated[str, DBusText(_INTERFACE, 'an interface, such as "org.freedesktop.DBus.Properties"')]
    member: Annotated[str, DBusText(_MEMBER, 'the name of a signal, such as "PropertiesChanged"')] = ""
    path: Annotated[str, DBusText(_PATH, 'an object path, such as "/org/freedesktop/UPower"', MAX_TEXT_BYTES)] = ""
    path_namespace: Annotated[str, DBusText(_PATH, 'an object path, such as "/org/freedesktop"', MAX_TEXT_BYTES)] = ""
    arg0: Annotated[str | None, FirstArgument()] = None
    """The first argument, a string; None: any."""
    origin: Annotated[Origin, Origin()] = field(default_factory=Origin)

    def __post_init__(self) -> None:
        if self.path and self.path_namespace:
            raise ValueError("path and path_namespace are mutually exclusive; remove one of them")


@dataclass(frozen=True, slots=True)
class DBusFeedSettings:
    """``feed-dbus.toml``: the settings of one feed."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    rate: Annotated[int, Count(1, 1_000_000, "more signals than a D-Bus bus delivers")] = 1000
    signals: Annotated[tuple[SignalRule, ...], Field(alias="signal")] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if len(self.signals) > MAX_SIGNALS:
            raise ValueError(f"too many tables [[signal]]: {len(self.signals)}, at most {MAX_SIGNALS}")
