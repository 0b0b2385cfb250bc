"""``make chaos-pipeline``: RUNS (30) runs of the pipeline with kills and faults at random, and in the end the tables of all rows.

0: the tables are equal; 1: they are not, or a program failed without a reason; 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import importlib.util
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.pipeline.disturbed_runs import DisturbedRuns

FAILED = 1
NOT_TRIED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenario and return the exit status."""
    parser = argparse.ArgumentParser(prog="chaos-pipeline", description="Runs of the pipeline with kills and faults at random.")
    parser.add_argument("--runs", type=int, default=30, help="number of runs (default: 30)")
    parser.add_argument("--rows", type=int, default=3_000, help="rows of each of three hosts (default: 3000)")
    parser.add_argument("--seed", type=int, default=None, help="of the random numbers (default: another each time)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("moto") is None or shutil.which("java") is None:
        print("chaos-pipeline: needs PySpark, moto and Java", file=sys.stderr)
        return NOT_TRIED
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="sbus-chaos-"))
    scenario = DisturbedRuns(folder, seed, options.runs, options.rows)
    begun = time.monotonic()
    try:
        scenario.run()
    except AssertionError as error:
        print(f"chaos-pipeline: seed {seed}: {error}\nfiles are in {folder}", file=sys.stderr)
        return FAILED
    finally:
        for name, count in sorted(scenario.counts.items()):
            print(f"{count:6} {name}")
    shutil.rmtree(folder)
    print(f"all tables are equal after {options.runs} runs in {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
