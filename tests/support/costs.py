"""What tests cost: the processor time of each, and the reason that a costly one gives in its docstring."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from tests.support import forked_programs

COSTLY_SECONDS = 20.0
"""A test that takes more processor time says in its docstring why."""

_PROPERTY = "processor_seconds"
_REASON = "reason"


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children until now."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + forked_programs.processor_seconds()


@dataclass(frozen=True, slots=True, order=True)
class Cost:
    """What a test took; the reason is the first line of a docstring, or empty."""

    seconds: float
    test: str
    reason: str


def note(report: pytest.TestReport, docstring: str | None, seconds: float) -> None:
    """Write into *report*, which travels from a worker to the process that shows it, that a test with *docstring* took *seconds*."""
    report.user_properties += [(_PROPERTY, seconds), (_REASON, (docstring or "").strip().partition("\n")[0])]


def costs(reports: Iterable[object]) -> list[Cost]:
    """Return the costs that are written in *reports*, the highest first."""
    found = []
    for report in reports:
        if isinstance(report, pytest.TestReport):
            properties = dict(report.user_properties)
            if isinstance(seconds := properties.get(_PROPERTY), float):
                found.append(Cost(seconds, report.nodeid, str(properties.get(_REASON, ""))))
    return sorted(found, reverse=True)


def lines(found: list[Cost], count: int) -> list[str]:
    """Return a table of the *count* highest costs, and a line for each test that is costly without a reason."""
    total = sum(each.seconds for each in found)
    table = [f"{each.seconds:8.1f} s  {each.test}: {each.reason or 'no reason'}" for each in found[:count]]
    words = f"more than {COSTLY_SECONDS:.0f} s of processor time need a reason in the docstring"
    missing = [f"{each.test}: {words}" for each in unreasoned(found)]
    return [f"{total:8.1f} s  all {len(found)} tests", *table, *missing]


def unreasoned(found: list[Cost]) -> list[Cost]:
    """Return the costly tests that give no reason."""
    return [each for each in found if each.seconds > COSTLY_SECONDS and not each.reason]
