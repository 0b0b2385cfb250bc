"""Two runs with kills and faults: the tables are those of plain Python. ``make chaos-pipeline`` has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.pipeline.disturbed_runs import DisturbedRuns
from tests.support.spark import require_spark

pytestmark = pytest.mark.machine


@pytest.mark.timeout(1800)
def test_disturbed_runs_give_the_tables_of_all_rows(tmp_path: Path) -> None:
    """It takes three starts of Spark: Java is killed, the store is gone for seconds, and a run without disturbances repairs the tables.

    Other tests kill the program, alone and with Java (test_pipeline_program.py, test_remote_tables.py), the shipper (test_shipping.py) and
    the recorder (test_recorder_kills.py).
    """
    require_spark()
    # A run takes more than two seconds on any machine, so Java is killed in each run of this test.
    scenario = DisturbedRuns(tmp_path, seed=4, runs=2, rows=150, targets=("java", "outage"), typical=2.0)
    scenario.run()
    assert sum(count for name, count in scenario.counts.items() if name.startswith("runs that ")) == 2
    assert scenario.counts["killed java"] == scenario.counts["outage"] == 1
