"""Bounds of the numbers in a saved state, which pydantic checks when the next process reads it. Spec: sbusd(8), RESTARTS.

This module imports pydantic only when a state is read: a first start does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Within:
    """For :data:`typing.Annotated`: a number from ``low`` to below ``end``, which excludes infinity and NaN."""

    low: int
    end: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic checks it."""
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: float) -> float:
        """Return *value*. Raises ValueError if it is out of bounds."""
        if not self.low <= value < self.end:
            raise ValueError(f"{value} is not in the range {self.low} to {self.end}")
        return value


@dataclass(frozen=True, slots=True)
class Latin1:
    """For :data:`typing.Annotated`: bytes that are stored in JSON as the characters with the same numbers."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic checks and converts it."""
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.no_info_after_validator_function(_bytes_of, core_schema.str_schema())


def _bytes_of(text: str) -> bytes:
    """Return the bytes whose numbers are the characters of *text*. Raises ValueError if there are none."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("it has characters above 255") from None
