"""A program and all that it starts: how long it takes, and how much memory all of them have at most."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.programs import BenchError
from tools.stage import ROOT

SAMPLE_SECONDS = 0.1
"""Between two looks: what is there for less is missed."""

LONGEST_SECONDS = 1800.0

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: seconds, bytes of resident memory of all its processes together at most, and what it said."""

    seconds: float
    peak_bytes: int
    output: str


def measure(command: Sequence[str], log: Path) -> Measured:
    """Run *command* and return what it took; its standard error is written to *log*.

    Raises:
        BenchError: it failed, or did not end.
    """
    begun = time.monotonic()
    peak = 0
    with log.open("wb") as errors, log.with_suffix(".out").open("w+b") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        while process.poll() is None:
            peak = max(peak, _resident(process.pid))
            if time.monotonic() - begun > LONGEST_SECONDS:
                process.kill()
                process.wait()
                raise BenchError(f"{command[1:4]} has not ended after {LONGEST_SECONDS:.0f} s")
            time.sleep(SAMPLE_SECONDS)
        seconds = time.monotonic() - begun
        output.seek(0)
        said = output.read().decode(errors="replace")
    if process.returncode:
        raise BenchError(f"{' '.join(command[1:4])} failed: {log.read_text(errors='replace').strip()[-500:]}")
    return Measured(seconds, peak, said)


def _resident(root: int) -> int:
    """Return the resident bytes of process *root* and all below it; pages that processes share count for each."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parents[int(name)] = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
                pages[int(name)] = int(Path("/proc", name, "statm").read_text().split()[1])
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(pages.get(pid, 0) for pid in family) * _PAGE
