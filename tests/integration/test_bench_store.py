"""bench-store works: each server that is installed does all of the work, and loses nothing that it has acknowledged. Not about speed."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.bench.store.results import ROWS, STORE
from tests.bench.store.servers import MAKERS, reason_missing
from tools.stage import ROOT


def test_every_server_does_all_of_the_work() -> None:
    command = [sys.executable, "-m", "tests.bench.store.run", "--quick"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80, done.stdout
    heading, *table = lines[1 : 2 + len(ROWS)]
    assert heading.split() == [STORE, "Redis", "ratio", "JetStream", "ratio"]
    figures = {re.split(r"  +", line)[0]: re.split(r"  +", line)[1:] for line in (each.strip() for each in table)}
    measured = [name for name in MAKERS if not reason_missing(name)]
    for missing in set(MAKERS) - set(measured):
        assert f"{missing} is not measured: " in done.stderr
    assert len(figures["acknowledged before kill"]) == len(measured)
    assert all(int(each.replace(",", "")) > 0 for each in figures["acknowledged before kill"])
    assert figures["lost after kill -9"] == ["0"] * len(measured)
    assert figures["last value, round trips"][0] == "1"
    assert "last value, round trips: 1 <= 2: ok" in lines
