"""What became of each try to reach another host, for whoever listens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try."""

    twin: int
    command: str
    number: int
    """From 1."""
    outcome: str
    """``sent``, ``away``, ``refused`` or ``unknown``."""
    reason: str
    """Why, in words; empty if it was sent."""
    duration_ns: int
    call: str
    """Digest of the call that it is for, ``call_digest``: that of the bus's, or one of this request's own."""


class Witness(Protocol):
    """Hears of attempts."""

    def saw(self, attempt: Attempt) -> None:
        """Take note; must not wait."""


class NoWitness:
    """Hears of nothing."""

    def saw(self, attempt: Attempt) -> None:
        """Take no note."""
