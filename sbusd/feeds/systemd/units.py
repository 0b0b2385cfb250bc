"""Units and jobs of systemd as plain values, and their keys. Spec: sbus-feed(8), KEYS; org.freedesktop.systemd1(5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbusd.feeds.netlink.entries import Attributes, escape

UNIT_HEAD = "systemd/unit/"
JOB_HEAD = "systemd/job/"

UNIT_PATHS = "/org/freedesktop/systemd1/unit/"
JOB_PATHS = "/org/freedesktop/systemd1/job/"

_INTERFACES = "org.freedesktop.systemd1."
UNIT_INTERFACE = f"{_INTERFACES}Unit"
JOB_INTERFACE = f"{_INTERFACES}Job"

RESULT_TYPES = ("automount", "mount", "path", "scope", "service", "socket", "swap", "timer")
"""The types of units that have a result."""

_ESCAPED = re.compile(r"_([0-9a-f]{2})")


@dataclass(slots=True)
class Unit:
    """A unit. ``load`` is None until it was read: no signal has it."""

    name: str
    load: str | None = None
    active: str = "inactive"
    sub: str = "dead"
    result: str | None = None
    job: int | None = None
    was_used: bool = False
    """Whether it was active or had a job. A unit that was only loaded to be looked at leaves no message."""

    def __post_init__(self) -> None:
        if self.result is None and has_result(self.name):
            self.result = "success"

    def apply(self, changed: Mapping[str, Any]) -> None:
        """Apply changed properties: variants by name. Raises TypeError, ValueError, LookupError for other types than systemd's."""
        for name, variant in changed.items():
            match name, variant.value:
                case "ActiveState", str(value):
                    self.active = value
                case "SubState", str(value):
                    self.sub = value
                case "Result", str(value):
                    self.result = value
                case "Job", [int(number), str()]:
                    self.job = number or None
                case (("ActiveState" | "SubState" | "Result" | "Job"), value):
                    raise ValueError(f"{name} is {value!r}")
        self.note_use()

    def note_use(self) -> None:
        """Note whether the unit is used now."""
        self.was_used = self.was_used or self.active != "inactive" or self.job is not None

    def attributes(self) -> Attributes:
        """Return the published attributes."""
        return {"unit": self.name, "load": self.load, "active": self.active, "sub": self.sub, "result": self.result, "job": self.job}


@dataclass(slots=True)
class Job:
    """A job. ``type`` is None if it ended before it was read: no signal has it."""

    number: int
    unit: str
    type: str | None = None
    state: str | None = None
    result: str | None = None

    def attributes(self) -> Attributes:
        """Return the published attributes."""
        return {"job": self.number, "unit": self.unit, "type": self.type, "state": self.state, "result": self.result}


def unit_key(name: str) -> str:
    """Return the key of a unit."""
    return f"{UNIT_HEAD}{escape(name)}"


def job_key(number: int) -> str:
    """Return the key of a job."""
    return f"{JOB_HEAD}{number}"


def has_result(name: str) -> bool:
    """Return whether the unit *name* has the property Result."""
    return name.rpartition(".")[2] in RESULT_TYPES


def type_interface(name: str) -> str:
    """Return the D-Bus interface of the type of the unit *name*."""
    return f"{_INTERFACES}{name.rpartition('.')[2].capitalize()}"


def unit_of_path(path: str) -> str:
    """Return the name of the unit at *path*. Source: sd_bus_path_decode(3). Raises ValueError for another path."""
    if not path.startswith(UNIT_PATHS):
        raise ValueError(f"not the path of a unit: {path!r}")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), path.removeprefix(UNIT_PATHS))


def path_of_unit(name: str) -> str:
    """Return the path of the unit *name*."""
    # A digit at the beginning is escaped too.
    escaped = re.sub(r"[^A-Za-z0-9]|^[0-9]", lambda match: f"_{ord(match[0]):02x}", name)
    return f"{UNIT_PATHS}{escaped}"


def job_of_path(path: str) -> int:
    """Return the number of the job at *path*. Raises ValueError for another path."""
    return int(path.removeprefix(JOB_PATHS))
