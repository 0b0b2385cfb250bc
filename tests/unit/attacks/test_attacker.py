from __future__ import annotations

import contextlib
import errno
import os
import signal
from pathlib import Path

import pytest

from tests.attacks.attacker import AttackContext, Attackers
from tests.attacks.descriptors import Keep, _keeping
from tests.support.users import SECOND

pytestmark = pytest.mark.usefixtures("needs_root")


def acts_twice(context: AttackContext) -> None:
    context.count(2)
    context.begin()
    signal.pause()


def is_refused(context: AttackContext) -> None:
    context.count(1 if os.getuid() == SECOND.uid else 100)
    raise ConnectionRefusedError


def fails(context: AttackContext) -> None:
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


def test_a_failed_process_is_reported_and_the_others_are_killed(capfd: pytest.CaptureFixture[str]) -> None:
    before = children()
    with pytest.raises(AssertionError, match="1 hostile processes have ended before they began"):
        Attackers("nowhere", (acts_twice, fails), SECOND, None)
    assert "RuntimeError: a defect" in capfd.readouterr().err
    assert children() == before


def counts_its_scheduling_and_ends(context: AttackContext) -> None:
    context.count(1 + os.sched_getscheduler(0))
    raise ConnectionRefusedError


@pytest.mark.parametrize(("is_urgent", "policy"), [(True, os.SCHED_OTHER), (False, os.SCHED_IDLE)])
def test_attackers_have_a_low_priority_only_while_speed_is_measured(is_urgent: bool, policy: int) -> None:
    attackers = Attackers("nowhere", (counts_its_scheduling_and_ends,), SECOND, None, is_urgent=is_urgent)
    assert attackers.acts == 1 + policy
    attackers.stop()


class PreparesAsRoot:
    def prepare(self, context: AttackContext) -> None:
        self._prepared_by = os.getuid()

    def __call__(self, context: AttackContext) -> None:
        context.count(1 if (self._prepared_by, os.getuid()) == (0, SECOND.uid) else 100)
        raise ConnectionRefusedError


def test_a_role_prepares_as_root_before_it_changes_its_ids() -> None:
    attackers = Attackers("nowhere", (PreparesAsRoot(),), SECOND, None)
    assert attackers.acts == 1
    attackers.stop()


def finds_no_descriptor(context: AttackContext) -> None:
    def run(context: AttackContext, keep: Keep) -> None:
        raise OSError(errno.EMFILE, "none left")

    _keeping(run)(context)


def test_an_attack_fails_if_its_descriptors_cannot_be_created(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="1 hostile processes have ended before they began"):
        Attackers("nowhere", (finds_no_descriptor,), SECOND, None)
    assert "no descriptor was sent" in capfd.readouterr().err
