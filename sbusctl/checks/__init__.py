"""The checks of ``sbusctl doctor``. Each module has functions that gather facts, and functions that judge them."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class CheckResult(enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    """It works, with limitations or at a risk."""
    FAIL = "fail"
    """It does not work."""
    SKIP = "skip"
    """It could not be checked, or does not apply."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: name, result, reason, and advice (empty if nothing needs to be done)."""

    check: str
    result: CheckResult
    reason: str
    advice: str = ""
