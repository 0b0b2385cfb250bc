"""A few runs with kills and faults: the tables are those of a quiet run, and of plain Python. ``make chaos-pipeline`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.pipeline.disturbed_runs import DisturbedRuns
from tests.support.spark import require_spark

pytestmark = pytest.mark.machine


@pytest.mark.timeout(1800)
def test_disturbed_runs_give_the_tables_of_a_quiet_one(tmp_path: Path) -> None:
    require_spark()
    scenario = DisturbedRuns(tmp_path, seed=4, runs=3, rows=200)
    scenario.run()
    assert sum(count for name, count in scenario.counts.items() if name.startswith("runs that ")) == 3
