"""Each attack once, briefly, on a real daemon: the victim loses nothing. How fast it stays is for ``make attacks`` to judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.catalogue import ATTACKS, Attack
from tests.attacks.trial import Plan, Trial
from tests.support.skips import require

BRIEF = Plan(rounds=1, seconds=0.05, is_urgent=True)


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_victim_loses_nothing(attack: Attack, folder: Path) -> None:
    obstacle = attack.obstacle()
    require(not obstacle, obstacle, could_run=False)
    verdict = Trial(folder, BRIEF).run(attack)
    assert verdict.problem == ""
    assert verdict.losses == 0
    assert len(verdict.rounds) == 1
    assert verdict.stall is not None
    assert verdict.stall.cause


def test_the_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
