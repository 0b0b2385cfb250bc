"""A defect that tests ought to find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Defect:
    """The text *old* of *file* becomes *new*, and *tests* ought to find that. *why* says what is wrong then."""

    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
