"""Sessions, users and seats of systemd-logind as plain values, and their keys. Spec: sbus-feed(8), KEYS; org.freedesktop.login1(5).

Every user can ask logind for the same values. The addresses of remote users are an exception here, because messages are also recorded and
sent to other hosts: they are published only on request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbusd.feeds.netlink.entries import Attributes, Json, escape

PREFIX = "logind/"

Properties = Mapping[str, Any]
"""The properties of an object: variants by name."""


def session_key(name: str) -> str:
    """Return the key of a session."""
    return f"{PREFIX}session/{escape(name)}"


def user_key(uid: int) -> str:
    """Return the key of a user."""
    return f"{PREFIX}user/{uid}"


def seat_key(name: str) -> str:
    """Return the key of a seat."""
    return f"{PREFIX}seat/{escape(name)}"


def session_attributes(properties: Properties, *, has_addresses: bool) -> Attributes:
    """Return the published attributes of a session. Raises ValueError, TypeError, LookupError or AttributeError for unexpected types."""
    attributes: Attributes = {
        "session": _value(properties, "Id"),
        "uid": int(properties["User"].value[0]),
        "user": _value(properties, "Name"),
        "seat": _name(properties, "Seat"),
        "class": _value(properties, "Class"),
        "type": _value(properties, "Type"),
        "state": _value(properties, "State"),
        "active": _value(properties, "Active"),
        "idle": _value(properties, "IdleHint"),
        "locked": _value(properties, "LockedHint"),
        "remote": _value(properties, "Remote"),
        "service": _value(properties, "Service"),
        "since": seconds(properties["Timestamp"].value) if "Timestamp" in properties else None,
    }
    if has_addresses:
        attributes |= {"remote_host": _value(properties, "RemoteHost"), "remote_user": _value(properties, "RemoteUser")}
    return attributes


def user_attributes(properties: Properties) -> Attributes:
    """Return the published attributes of a user; raises as :func:`session_attributes`."""
    return {
        "uid": int(properties["UID"].value),
        "user": _value(properties, "Name"),
        "state": _value(properties, "State"),
        "sessions": _names(properties, "Sessions"),
        "idle": _value(properties, "IdleHint"),
        "linger": _value(properties, "Linger"),
    }


def seat_attributes(properties: Properties) -> Attributes:
    """Return the published attributes of a seat; raises as :func:`session_attributes`."""
    return {
        "seat": _value(properties, "Id"),
        "active_session": _name(properties, "ActiveSession"),
        "sessions": _names(properties, "Sessions"),
        "idle": _value(properties, "IdleHint"),
    }


def seconds(microseconds: int) -> float | None:
    """Return seconds since 1970, None for 0 and for the largest number, by which logind says that a time is unknown."""
    return round(microseconds / 1e6, 6) if 0 < microseconds < (1 << 64) - 1 else None


def _value(properties: Properties, name: str) -> Json:
    """Return a text, number or boolean; None without the property, or for an empty text."""
    value = properties[name].value if name in properties else None
    if not isinstance(value, str | int | bool | None):
        raise TypeError(f"{name} is {value!r}")
    return None if value == "" else value


def _name(properties: Properties, name: str) -> str | None:
    """Return the name in a pair of name and path; None if it is empty."""
    return str(properties[name].value[0]) or None if name in properties else None


def _names(properties: Properties, name: str) -> list[Json]:
    """Return the names in a list of pairs of name and path, in order."""
    return [str(each[0]) for each in sorted(properties[name].value)] if name in properties else []
