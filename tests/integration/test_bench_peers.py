"""bench-peers works: every contender that is installed carries every kind of load, and loses nothing. Says nothing about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench.peers.contenders import IN_PYTHON, NODE_TRIP, NODE_WORK, OVER_C, PUMPS, PYTHON, TRIP, in_node
from tests.bench.peers.daemons import MOSQUITTO, SBUSD
from tests.support import skips

ROOT = Path(__file__).resolve().parents[2]
BENCH = (sys.executable, "-m", "tests.bench.peers.run")


def measure(tmp_path: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    record = tmp_path / "bench.json"
    done = subprocess.run(
        [*BENCH, "--quick", "--json", str(record), *options], capture_output=True, cwd=ROOT, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(record.read_text(encoding="utf-8"))["rows"]
    return done.stdout, rows


def test_every_protocol_carries_every_load(tmp_path: Path) -> None:
    printed, rows = measure(tmp_path, "--only", "c")
    assert [row["name"] for row in rows] == list(PUMPS)
    for row in rows:
        for contender in OVER_C:
            cell = row["contenders"][contender.name]
            if contender.daemon.found() is None:
                assert "is not installed" in cell["reason"]
                continue
            assert cell["reason"] == "", (row["name"], contender.name)
            assert cell["lost"] == 0 or contender.daemon is MOSQUITTO  # which may drop
            assert all(figure > 0 for figure in (*cell["deliveries"], *cell["daemon's CPU per delivery"]))
            assert ("round trip p50" in cell) is (row["name"] == TRIP)
            assert all(figure > 0 for name in ("clients", "daemon's CPU per client") for figure in cell.get(name, ()))
            assert ("clients" in cell) is (row["name"] == TRIP)
    assert all(contender.name in printed for contender in OVER_C)


def test_every_python_client_that_is_installed_is_measured(tmp_path: Path) -> None:
    printed, (row,) = measure(tmp_path, "--only", "python")
    assert row["name"] == PYTHON
    for contender in IN_PYTHON:
        cell = row["contenders"][contender.name]
        if contender.daemon is SBUSD:
            assert cell["reason"] == ""
        assert ("is not installed" in cell["reason"]) if cell["reason"] else all(figure > 0 for figure in cell["round trip p99"])
        assert cell["lost"] == 0 or contender.daemon is MOSQUITTO
        assert contender.name in printed


def test_every_node_client_that_is_installed_is_measured(tmp_path: Path) -> None:
    skips.require_program("node", "nodejs")
    printed, rows = measure(tmp_path, "--only", "node")
    assert [row["name"] for row in rows] == list(NODE_WORK)
    for row in rows:
        assert list(row["contenders"]) == [contender.name for contender in in_node(NODE_WORK[row["name"]])]
        for contender in in_node(NODE_WORK[row["name"]]):
            cell = row["contenders"][contender.name]
            if contender.daemon is SBUSD:
                assert cell["reason"] == "", row["name"]
            elif cell["reason"]:
                assert "is not installed" in cell["reason"]
                continue
            assert all(figure > 0 for figure in cell["deliveries"])
            assert cell["lost"] == 0
            assert ("round trip p50" in cell) is (row["name"] == NODE_TRIP)
            assert contender.name in printed
