"""The three tiers of tests, by what a test starts.

fast
    no program: unit, contract and property tests. ``make check`` runs them, in three minutes on two processors.
slow
    programs: buses, services, clusters, browsers.
machine
    booted machines, built packages, or Spark.

A test has the tier of its folder unless it is marked with another one. A fast test may fork, to be another user, and run what reads
the tree: a fast test that starts any other program fails, and its error says how to mark it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import PurePath, PurePosixPath

import pytest

TIERS = {
    "fast": "starts no program; make check runs it",
    "slow": "starts programs",
    "machine": "boots a machine, builds packages, or uses Spark",
}

FOLDERS = {
    "faults": "slow",
    "attacks": "slow",
    "soak": "slow",
    "fuzz": "slow",
    "system": "machine",
    "integration": "slow",
    "sanitize": "slow",
    "property": "fast",
    "contract": "fast",
    "unit": "fast",
}
"""Folders of tests and their tiers, those with the longest files first: a long file that starts last keeps one worker busy when all
others are done."""

READERS = {"git", "groff", "man", "mandoc", "ruff"}
"""Programs that only read the tree, a manual page or their input, which a fast test may run."""


@dataclass(slots=True)
class StartedPrograms:
    """The programs that the running test has started, which the interpreter reports: its audit event ``subprocess.Popen``."""

    names: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Begin, for the rest of this process."""
        sys.addaudithook(self._hook)

    def begin(self) -> None:
        """Forget those of the test before."""
        self.names.clear()

    def refused(self) -> list[str]:
        """Return those that a fast test may not start, sorted."""
        return sorted(set(self.names) - READERS)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and isinstance(args[0], str | bytes | PurePath):
            self.names.append(PurePath(os.fsdecode(args[0])).name)


def folder_of(item: pytest.Item) -> str:
    """Return the folder of *item* in :data:`FOLDERS`, or an empty string if it is in none."""
    parts = PurePosixPath(item.nodeid).parts
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else ""


def give_tier(item: pytest.Item) -> None:
    """Mark *item* with the tier of its folder unless it has a tier of its own."""
    if not any(item.get_closest_marker(tier) for tier in TIERS):
        item.add_marker(FOLDERS.get(folder_of(item), "slow"))
