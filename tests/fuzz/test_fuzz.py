"""The corpus, replayed; and a short run of the fuzzer itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.fuzz.run import CORPUS, TARGETS
from tests.support.skips import require
from tools.stage import ROOT

SEEDS = sorted(path for target in TARGETS for path in (CORPUS / target).iterdir())

RUNS = {
    "addresses": 10_000,
    "batches": 300,
    "configuration": 1_000,
    "control": 200,
    "direct_messages": 300,
    "frames": 300,
    "keys": 300,
    "packets": 10_000,
    "stream_sockets": 300,
    "streams": 3_000,
    "vouching": 300,
}
"""Inputs in a short run, by what one costs: about a second for each target, to show that it works. ``make fuzz`` searches for long."""

END_SECONDS = 600
"""When a run that does not end is a failure, on a machine however slow."""


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_corpus_is_replayed(path: Path) -> None:
    import_module(f"tests.fuzz.{path.parent.name}").check(path.read_bytes())


def test_every_target_has_a_corpus_of_small_files() -> None:
    assert {path.parent.name for path in SEEDS} == set(TARGETS) == {path.name for path in CORPUS.iterdir()}
    assert all(path.stat().st_size < 8_192 for path in SEEDS)


@pytest.fixture
def needs_atheris() -> None:
    """Skip the test unless the fuzzer is there."""
    could_run = importlib.util.find_spec("pip") is not None
    require(importlib.util.find_spec("atheris") is not None, "needs atheris: pip install 'sbusd[dev]'", could_run=could_run)


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(target: str, tmp_path: Path, needs_atheris: None) -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", target, "--runs", str(RUNS[target]), "--seed", "1", "--found", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=END_SECONDS, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-4_000:]
    assert f"Done {RUNS[target]} runs" in done.stderr
    assert [path.name for path in (tmp_path / target).iterdir() if "-" in path.name] == []


BROKEN = """
import sys
from pathlib import Path
from tests.fuzz.run import fuzz

def load():
    from sbus.protocol.packets import Subscribe, parse_packet
    from sbus.protocol.errors import ProtocolError

    def check(data):
        try:
            packet = parse_packet(data)
        except ProtocolError:
            return
        assert not isinstance(packet, Subscribe), "found"

    return check

fuzz(load, Path(sys.argv[1]), ["-runs=1000000", "-seed=1"])
"""


def test_a_broken_invariant_is_found_and_kept(tmp_path: Path, needs_atheris: None) -> None:
    """Else a fuzzer that calls nothing would pass. It finds its way to ``SUB `` by itself, so the instrumentation guides it."""
    command = [sys.executable, "-c", BROKEN, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=END_SECONDS, text=True, errors="replace")
    assert done.returncode != 0
    assert "AssertionError: found" in done.stdout + done.stderr
    (crash,) = tmp_path.glob("crash-*")
    assert crash.read_bytes().startswith(b"SUB ")
