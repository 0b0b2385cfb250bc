"""Each attack once, briefly, on a real daemon: the victim loses nothing. How fast it stays is for ``make attacks`` to judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks import hostile
from tests.attacks.catalogue import ATTACKS, Attack
from tests.attacks.runner import AttackRunner, Plan
from tests.support.skips import require

BRIEF = Plan(rounds=1, seconds=0.05, is_urgent=True)
SEND_BUFFER_BYTES = 512 << 10
"""Of an attacker, for two batches or long packets at least: the bus handles for up to 20 s what attackers leave in the full size."""


@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_victim_loses_nothing(attack: Attack, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile, "SEND_BUFFER_BYTES", SEND_BUFFER_BYTES)
    obstacle = attack.obstacle()
    require(not obstacle, obstacle, could_run=False)
    result = AttackRunner(folder, BRIEF).run(attack)
    assert result.problem == ""
    assert result.losses == 0
    assert len(result.rounds) == 1
    assert result.stall is not None
    assert result.stall.cause


def test_the_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
