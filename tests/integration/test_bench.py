"""The bench works: every scenario runs against a real daemon, nothing is lost, and the table is whole. Says nothing about speed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = (sys.executable, "-m", "tests.bench.run")
LINES = 35


def test_a_quick_run_measures_every_line(tmp_path: Path) -> None:
    record = tmp_path / "bench.json"
    done = subprocess.run(
        [*BENCH, "--quick", "--no-fail", "--json", str(record)], capture_output=True, cwd=ROOT, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = json.loads(record.read_text(encoding="utf-8"))
    assert len(lines) == LINES
    assert all(figure > 0 for line in lines for figure in (*line["values"], *line["references"]) if "memory for each" not in line["name"])
    assert all(line["name"] in done.stdout for line in lines)


def test_a_failed_measurement_is_one_line_with_its_own_status() -> None:
    done = subprocess.run(
        [*BENCH, "--quick", "--only", "start", "--daemon", "/nonexistent/sbusd"],
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "bench: cannot run /nonexistent/sbusd: No such file or directory\n"
    assert done.stdout == ""


def test_blobs_are_compared_with_messages() -> None:
    sizes = ("--mebibytes", "1", "--subscribers", "2", "--rounds", "1", "--shared-mebibytes", "2", "--users", "2")
    command = [sys.executable, "-m", "tests.bench.blobs", *sizes, "--no-fail"]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 MiB to 2 subscribers, a byte of each page is read:\n" in done.stdout
    assert len(re.findall(r"^  blob, .* GB/s", done.stdout, re.MULTILINE)) == 4
    assert "2 MiB to 2 other users: " in done.stdout
    assert "median of 1 rounds: " in done.stdout
