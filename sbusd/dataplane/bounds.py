"""Bounds of the numbers in what one bus leaves to the next, checked by pydantic when that is read. Spec: sbusd(8), RESTARTS.

Imports nothing heavy: a bus that goes on after no other never needs pydantic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Within:
    """For :data:`typing.Annotated`: a number from ``low`` on and below ``end``; so neither infinite nor no number at all."""

    low: int
    end: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Tell pydantic how to check."""
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: float) -> float:
        """Return *value*. Raises ValueError if it is out of bounds."""
        if not self.low <= value < self.end:
            raise ValueError(f"{value} is not in the range {self.low} to {self.end}")
        return value


@dataclass(frozen=True, slots=True)
class Latin1:
    """For :data:`typing.Annotated`: bytes that JSON has as the characters of the same numbers."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Tell pydantic how to check and convert."""
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.no_info_after_validator_function(_bytes_of, core_schema.str_schema())


def _bytes_of(text: str) -> bytes:
    """Return the bytes whose numbers are the characters of *text*. Raises ValueError if there are none."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("it has characters above 255") from None
