"""The checks of ``sbusctl doctor``. Each module has functions that gather facts, and functions that judge them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CheckResult(enum.Enum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as well or as safely as it should."""
    FAIL = "fail"
    """It does not work."""
    SKIP = "skip"
    """It could not be looked at, or does not apply here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, how it ended, why, and what to do about it (empty if nothing)."""

    check: str
    result: CheckResult
    reason: str
    advice: str = ""
