"""Numbers in configuration files: counts, sizes and durations with their units. Spec: sbusd.toml(5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from sbus.protocol.printable import printable

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

SIZE_UNITS: Mapping[str, int] = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
"""Bytes in each unit of a size. Only binary units: a limit of memory in powers of ten is usually a mistake."""

DURATION_UNITS: Mapping[str, float] = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds in each unit of a duration, as in systemd.time(7)."""

_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)")


class Spelling:
    """The syntax of one value in a file: metadata of an ``Annotated`` setting, from which pydantic gets its validator."""

    def parse(self, value: object) -> object:
        """Return the meaning of the TOML *value*. Raises ValueError, whose text says what would be valid."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a schema that validates with :meth:`parse`."""
        # Imported here: the defaults do not need pydantic, which is slow to import.
        from pydantic_core import core_schema  # noqa: PLC0415

        return core_schema.no_info_plain_validator_function(self.parse)


@dataclass(frozen=True, slots=True)
class Count(Spelling):
    """A whole number from ``least`` to ``most``; ``why`` is the reason for these limits, for the error text."""

    least: int
    most: int
    why: str

    def parse(self, value: object) -> int:
        """Return the number. Raises ValueError if *value* is not one, or out of range."""
        if not is_whole(value):
            raise ValueError(f"must be a whole number from {self.least} to {self.most}, not {show(value)}")
        if not self.least <= value <= self.most:
            raise ValueError(f"must be {self.least} to {self.most}, not {value}: {self.why}")
        return value


NO_BOUND = 1 << 56
"""The number that means "no limit". A hundred times this number still fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class Bound(Count):
    """A whole number as for :class:`Count`, or ``"none"``, which is :data:`NO_BOUND`."""

    def parse(self, value: object) -> int:
        """Return the number. Raises ValueError if *value* is not one, or out of range."""
        if value == "none":
            return NO_BOUND
        try:
            # Not super(): the decorator creates a class with slots a second time, which super() does not find.
            return Count.parse(self, value)
        except ValueError as error:
            raise ValueError(f'{error}; "none" means no limit') from None


@dataclass(frozen=True, slots=True)
class Size(Spelling):
    """A number of bytes from ``least`` to ``most``: a whole number, or one with its unit, ``"64MiB"``."""

    least: int
    most: int
    why: str

    def parse(self, value: object) -> int:
        """Return the size in bytes. Raises ValueError if *value* is not a size, or out of range."""
        if is_whole(value):
            size = value
        else:
            number, factor = _split(value, SIZE_UNITS, "a size", '"64MiB"', "a number of bytes")
            size = round(number * factor)
            if size != number * factor:
                raise ValueError(f"must be a whole number of bytes, not {show(value)}")
        if not self.least <= size <= self.most:
            raise ValueError(f"must be {show_size(self.least)} to {show_size(self.most)}, not {show(value)}: {self.why}")
        return size


@dataclass(frozen=True, slots=True)
class Duration(Spelling):
    """A time from ``least`` to ``most`` seconds, always with its unit: ``"30s"``, ``"100ms"``, ``"2min"``."""

    least: float
    most: float
    why: str

    def parse(self, value: object) -> float:
        """Return the duration in seconds. Raises ValueError if *value* is not a duration, has no unit, or is out of range."""
        number, factor = _split(value, DURATION_UNITS, "a duration", '"30s"', None)
        seconds = number * factor
        if not self.least <= seconds <= self.most:
            raise ValueError(f"must be {show_duration(self.least)} to {show_duration(self.most)}, not {show(value)}: {self.why}")
        return seconds


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether *value* is a whole number. In Python ``True`` is one too, in TOML it is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def show_size(size: int) -> str:
    """Return *size* bytes in the largest unit that gives a whole number."""
    unit = max((unit for unit, factor in SIZE_UNITS.items() if size and size % factor == 0), key=SIZE_UNITS.__getitem__, default="B")
    return f"{size // SIZE_UNITS[unit]}{unit}"


def show_duration(seconds: float) -> str:
    """Return *seconds* in the largest unit that gives at least 1."""
    unit = max((unit for unit, factor in DURATION_UNITS.items() if seconds >= factor), key=DURATION_UNITS.__getitem__, default="us")
    return f"{seconds / DURATION_UNITS[unit]:g}{unit}"


def show(value: object) -> str:
    """Return a TOML value for an error text, cut if it is long."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{printable(value, 60)}"'
        case dict():
            return "a table"
        case list():
            return "an array"
        case _:
            return printable(str(value), 60)


def _split(value: object, units: Mapping[str, float], what: str, example: str, bare: str | None) -> tuple[float, float]:
    """Return the number in *value* and the factor of its unit; *bare* names a number without a unit, if that is allowed."""
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        *names, last = units
        valid = f"{f'{bare}, or ' if bare else ''}a number with {', '.join(names)} or {last}"
        raise ValueError(f"{show(value)} is not {what}; use {valid}, such as {example}")
    return float(match[1]), units[match[2]]
