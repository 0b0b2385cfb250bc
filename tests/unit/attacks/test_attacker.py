from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.attacks.attacker import Attackers, Crew
from tests.support.users import SECOND

pytestmark = pytest.mark.usefixtures("needs_root")


def acts_twice(crew: Crew) -> None:
    crew.count(2)
    crew.begin()
    signal.pause()


def is_refused(crew: Crew) -> None:
    crew.count(1 if os.getuid() == SECOND.uid else 100)
    raise ConnectionRefusedError


def fails(crew: Crew) -> None:
    raise RuntimeError("a defect of the attack itself")


def test_acts_are_counted_over_all_processes() -> None:
    attackers = Attackers("nowhere", (acts_twice, is_refused, acts_twice), SECOND, None)
    assert attackers.acts == 5
    attackers.stop()


def children() -> set[str]:
    """Return the processes that this one has not reaped: other tests may have left some of theirs running."""
    ours = f"PPid:\t{os.getpid()}\n"
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if ours in status.read_text():
                found.add(status.parent.name)
    return found


def test_a_process_that_fails_is_told_and_the_others_are_ended(capfd: pytest.CaptureFixture[str]) -> None:
    before = children()
    with pytest.raises(AssertionError, match="1 hostile processes have ended before they began"):
        Attackers("nowhere", (acts_twice, fails), SECOND, None)
    assert "RuntimeError: a defect" in capfd.readouterr().err
    assert children() == before
