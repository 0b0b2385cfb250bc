"""Fairness, pacing and timeouts: the compiled switch beside the model, on a clock that the test sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.stage import ROOT

SOURCE = ROOT / "tests" / "oracle" / "clock.c"
END_SECONDS = 900
"""When it hangs. It takes ten seconds of processor time."""


def test_as_time_passes_both_do_the_same(tmp_path: Path) -> None:
    library = tmp_path / "clock.so"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    # Behind what is there already: a sanitizer wants to be first.
    preloaded = [name for name in (os.environ.get("LD_PRELOAD"), str(library)) if name]
    env = os.environ | {"LD_PRELOAD": ":".join(preloaded)}
    life = [sys.executable, "-m", "tests.oracle.timed_life"]
    done = subprocess.run(life, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=END_SECONDS)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-8_000:]
