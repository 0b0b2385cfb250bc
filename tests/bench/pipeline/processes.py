"""A program and all that it starts: how long it takes, on the clock and of processors, and how much memory all of them have at most."""

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

LONGEST_SECONDS = 3600.0
"""Ten times what the longest needs on a machine of its own: others may be on it."""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME = 11, 12
"""The positions of the processor times in /proc/PID/stat after the name: proc_pid_stat(5)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: seconds, bytes of resident memory of all its processes together at most, and what it said."""

    seconds: float
    processor_seconds: float
    """Of all its processes: unlike the clock's, hardly more on a busy machine. What a process does after the last look is missed."""
    peak_bytes: int
    output: str


def measure(command: Sequence[str], log: Path) -> Measured:
    """Run *command* and return what it took; its standard error is written to *log*.

    Raises:
        BenchError: it failed, or did not end.
    """
    begun = time.monotonic()
    peak = 0
    ticks: dict[int, int] = {}
    with log.open("wb") as errors, log.with_suffix(".out").open("w+b") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        while process.poll() is None:
            family = _family(process.pid)
            peak = max(peak, sum(each.resident_bytes for each in family.values()))
            ticks.update((pid, each.ticks) for pid, each in family.items())
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
    return Measured(seconds, sum(ticks.values()) / _TICK, peak, said)


@dataclass(frozen=True, slots=True)
class _Process:
    """What one process has used; pages that processes share count for each."""

    parent: int
    ticks: int
    resident_bytes: int


def _family(root: int) -> dict[int, _Process]:
    """Return process *root* and all below it, by number."""
    found: dict[int, _Process] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                pages = int(Path("/proc", name, "statm").read_text().split()[1])
            except (OSError, IndexError):
                continue  # it has ended meanwhile
            found[int(name)] = _Process(int(stat[1]), int(stat[_UTIME]) + int(stat[_STIME]), pages * _PAGE)
    family = {root}
    while more := {pid for pid, process in found.items() if process.parent in family} - family:
        family |= more
    return {pid: found[pid] for pid in family if pid in found}
